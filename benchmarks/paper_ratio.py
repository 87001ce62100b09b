"""The plan for 256 NPUs of CloudMatrix384 beside the paper's deployment, over output lengths.

    python benchmarks/paper_ratio.py [--outputs 256,512,1024,2350,4096,8192]

DeepSeek-R1, prompts of 4,096 tokens, TTFT within 8 s and TPOT within 50 ms (arXiv 2506.12708, sections 4.1 and 5.1: 6
prefill instances of EP32 and 1 decode instance of EP320 on 256 NPUs). A column for the paper's degrees in the numbers
that suit the length, by the same model; what both pools carry shows how they balance.
"""

import argparse

from planner.plans.plan import Plan
from planner.search.search import search
from podplan.options import QuestionFlags
from podplan.question import read_question

PAPER = "CloudMatrix384"


def pools_text(plan: Plan) -> str:
    """Name instances and their devices (dies), prefill first."""
    return " + ".join(f"{pool.instances} × {pool.candidate.devices}" for _, pool in plan.pools())


def row(output: str) -> str:
    """Return a row of the table."""
    asked = {"hw": "cm384", "chips": "256", "isl": "4096", "osl": output, "ttft": "8s", "shape": "disaggregated"}
    flags = QuestionFlags(model="deepseek-r1", **asked)
    answer = search(read_question(flags).question)
    best = answer.best
    assert best is not None, "256 NPUs carry something"
    paper = next(each.plan for each in answer.published if each.published.name == PAPER)
    assert paper is not None, "the paper's instances carry something"
    carried = [f"{pool.capacity_per_second:.0f}" for _, pool in best.pools()]
    shares = [pool.devices for _, pool in best.pools()]
    cells = [
        output,
        pools_text(best),
        f"{shares[0] / shares[1]:.2f}",
        ", ".join(carried),
        f"{best.requests_per_second:.1f}",
        pools_text(paper),
        f"{paper.requests_per_second:.1f}",
        f"{best.requests_per_second / best.chips / (paper.requests_per_second / paper.chips) - 1:+.1%}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", default="256,512,1024,2350,4096,8192", help="output lengths")
    asked = parser.parse_args()
    print("| output | prefill + decode, dies | ratio | they carry | requests/s | paper's | requests/s | per chip |")
    print("|---|---|---|---|---|---|---|---|")
    for output in asked.outputs.split(","):
        print(row(output), flush=True)


if __name__ == "__main__":
    main()
