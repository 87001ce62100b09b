"""Mean waits in closed form, as oracles: Pollaczek-Khinchine, Erlang C, Allen-Cunneen.

They take rates, service times and squared coefficients of variation.
"""

import math


def pollaczek_khinchine_wait(rate_per_second: float, service_seconds: float, service_squared_cv: float) -> float:
    """Mean wait of M/G/1 in seconds: rho (1 + c^2) S / (2 (1 - rho)); infinite from rho = 1 on.

    With c = 0 it is M/D/1, the prefill queue of DistServe (OSDI 2024, section 3.1, Eq. (1) without its service time).

    Ref: F. Pollaczek 1930, A. Khinchine 1932; L. Kleinrock, Queueing Systems I, section 5.6.
    """
    utilisation = rate_per_second * service_seconds
    if utilisation >= 1:
        return math.inf
    return utilisation / (1 - utilisation) * (1 + service_squared_cv) / 2 * service_seconds


def erlang_c(servers: int, offered: float) -> float:
    """Probability that a request waits in M/M/c, for ``offered`` = rate times service < ``servers``; else 1.

    Through Erlang B, B_0 = 1, B_k = a B_(k-1) / (k + a B_(k-1)): C = B / (1 - (a/c)(1 - B)).

    Ref: A. K. Erlang 1917; Kleinrock, Queueing Systems I, section 3.5.
    """
    if offered >= servers:
        return 1.0
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = offered * blocked / (k + offered * blocked)
    return blocked / (1 - offered / servers * (1 - blocked))


def allen_cunneen_wait(
    servers: int, rate_per_second: float, service_seconds: float, arrival_squared_cv: float, service_squared_cv: float
) -> float:
    """Mean wait of G/G/c behind one queue in seconds: Erlang C wait times (ca^2 + cs^2)/2; infinite when unstable.

    Ref: A. O. Allen, Probability, Statistics and Queueing Theory, 2nd ed., section 5.3.6.
    """
    offered = rate_per_second * service_seconds
    if offered >= servers:
        return math.inf
    memoryless = erlang_c(servers, offered) * service_seconds / (servers - offered)
    return memoryless * (arrival_squared_cv + service_squared_cv) / 2
