"""How `plan` ends."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every command; scripts depend on them."""

    DONE = 0  # done, or feasible
    FAULT = 1  # podplan contradicts itself or is installed wrongly
    BAD_INPUT = 2  # a flag, a file or a name is wrong
    INFEASIBLE = 3  # a valid question without a feasible answer
    INTERRUPTED = 130  # Ctrl-C: 128 + SIGINT
    PIPE_CLOSED = 141  # the reader of stdout went away: 128 + SIGPIPE
