"""TTFT of prefill instances as plans tell it, beside streams that are many times as long and of other seeds.

    python benchmarks/prefill_played.py [--requests 1000000] [--seeds 2]

Qwen3-30B-A3B on H800 with log-normal prompts of 1,024 tokens on one instance that gets Poisson arrivals. The last
column is whether the interval that a plan states holds the p99 of the long streams.
"""

import argparse

import numpy as np

from planner.instances.candidates import Count
from planner.instances.space import role_rows
from planner.offers.kinds import PrefillKind
from planner.offers.prefill_offers import prefill_offers
from planner.serving.played import PlayedPrefill, prefill_outcome
from planner.serving.streams import stationary
from podplan.options import QuestionFlags
from podplan.question import read_question

FLAGS = {"hw": "h800", "nodes": "2", "isl": "1024", "osl": "128", "ttft": "1s"}


def players(cv: float) -> list[PlayedPrefill]:
    """Return instances of one, four and sixteen DP ranks."""
    flags = QuestionFlags(model="qwen3-30b-a3b", **{**FLAGS, "isl_cv": f"{cv:g}"})
    question = read_question(flags).question
    offers = prefill_offers(question, role_rows(question, "prefill"), Count())
    found: dict[int, PlayedPrefill] = {}
    for number in offers.leading(len(offers)):
        kind = offers.build(number)
        assert isinstance(kind, PrefillKind), "offers of prefill are"
        player = kind.at(1).player if kind.row.strategy.attention_dp not in found else None
        if player is not None and player.pool.ranks in (1, 4, 16):
            found[player.pool.ranks] = player
        if len(found) == 3:
            break
    return [found[ranks] for ranks in sorted(found)]


def long(player: PlayedPrefill, rate: float, requests: int, seeds: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return TTFT of long streams of other seeds, all together."""
    streams = (
        stationary(player.workload, requests, seed=1 + seed, most_tokens=player.most_tokens) for seed in range(seeds)
    )
    outcomes = ((prefill_outcome(player.pool, stream.at_rate(rate)), stream.counting) for stream in streams)
    return np.concatenate([outcome.ttft_seconds[inner] for outcome, inner in outcomes])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    print("| CV | ranks | utilisation | TTFT mean | p99 | mean, plan | p99, plan | interval of p99 | covers |")
    print("|---|---|---|---|---|---|---|---|---|")
    for cv in (0.5, 1.0, 2.0):
        for player in players(cv):
            for utilisation in (0.5, 0.7, 0.85, 0.95):
                rate = utilisation * player.saturation_per_second
                told, played = player.trial(rate, 1, None), long(player, rate, asked.requests, asked.seeds)
                mean, p99 = float(played.mean()), float(np.percentile(played, 99))
                low, high = (end * (player.limits.ttft_seconds or 1.0) / told.ttft.p99 - 1 for end in told.interval())
                covers = low <= p99 / told.ttft.p99 - 1 <= high
                print(
                    f"| {cv:g} | {player.pool.ranks} | {utilisation:g} | {mean * 1e3:.0f} ms | {p99 * 1e3:.0f} ms | "
                    f"{told.ttft.mean / mean - 1:+.1%} | {told.ttft.p99 / p99 - 1:+.1%} | {low:+.0%} to {high:+.0%} | "
                    f"{'yes' if covers else 'no'} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
