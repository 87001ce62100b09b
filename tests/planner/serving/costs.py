"""Step costs for tests: seconds that are linear in what a step carries."""

from planner.manifest.terms import ComputeTerm, StepCost


def linear_cost(
    fixed: float,
    per_token: float,
    per_request: float = 0.0,
    *,
    per_kv: float = 0.0,
    per_pair: float = 0.0,
    ranks: int = 1,
) -> StepCost:
    """Return fixed seconds, and more for each prompt token, running request, cached token and causal pair."""
    work = {"chunk": per_token, "decode": per_request, "kv": per_kv, "pairs": per_pair}
    term = ComputeTerm(
        name="step",
        stage="dense",
        flops={},
        idle_flops={},
        flops_per_second=1.0,
        bytes={"one": 1e-12, **{name: seconds for name, seconds in work.items() if seconds}},
        bytes_per_second=1.0,
        floor_seconds=fixed,
    )
    return StepCost(
        terms=(term,),
        dense_layers=1,
        moe_layers=0,
        queries_per_sequence=1,
        attention_ranks=ranks,
        expert_ranks=1,
        shared_ranks=0,
        experts=0,
        experts_per_token=0,
        slots_per_rank=0.0,
        rule="compute_communication",
    )
