"""How vLLM-Ascend 0.23.0 exchanges tokens: chosen at run time by device generation, EP degree and tokens.

Ref: vllm_ascend/ascend_forward_context.py of the 0.23.0 wheel, select_moe_comm_method; without fused MC2.
"""

from typing import Literal

from planner.manifest.terms import Number, smaller

Generation = Literal["a2", "a3", "a5"]
Exchange = Literal["mc2", "all_to_all", "allgather"]

GRAPH_TOKENS = 512
A2_LEAST_EP = 16
A2_MOST_EXPERTS_PER_DEVICE = 24


def mc2_capacity(tokens: Number, tensor: Number) -> Number:
    """Return the tokens of a DP rank that MC2 takes: min(ceil(tokens / TP), 512) · TP.

    >>> mc2_capacity(1500, 2)
    1024
    """
    return smaller(-(-tokens // tensor), GRAPH_TOKENS) * tensor


def exchange_of(
    generation: Generation,
    *,
    ep: int,
    experts: int,
    tokens: int,
    capacity: Number,
    world: int,
    experts_per_token: int,
) -> Exchange:
    """Return the exchange of a step of ``tokens`` per DP rank with EP degree ``ep`` over ``world`` devices.

    ``capacity`` is ``mc2_capacity``. A2 takes MC2 from EP 16 on with at most 24 experts per device, else it gathers
    tokens on all ranks; past the capacity A3 takes an all-to-all, A5 too where ``world`` exceeds the experts per token.
    """
    fits = tokens <= capacity
    if ep == 1:
        return "allgather"
    if generation == "a2":
        return "mc2" if fits and ep >= A2_LEAST_EP and experts // ep <= A2_MOST_EXPERTS_PER_DEVICE else "allgather"
    if fits:
        return "mc2"
    return "allgather" if generation == "a5" and world <= experts_per_token else "all_to_all"
