"""How an engine schedules, as data: what shares a step, who is let in, who gives way, and which rank a request goes to.

The loops of ``planner.loops`` know these rules and no engine; a profile of ``planner.engines`` names the rule of each
engine and version. The reference runtime reserves the KV of whole answers, so it never preempts; vLLM's V1 scheduler
lets in what fits now and preempts who came last; SGLang sets aside a share of what answers may still take. A preempted
request is computed again, with what was answered so far.
"""

from functools import cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from ground.errors import BadInput
from planner.engines.loader import engine_names, load_engine
from planner.engines.spec import Scheduling

if TYPE_CHECKING:
    from planner.manifest.schema import Manifest

Order = Literal["shared", "prompts_first", "mixed_chunk"]
Admission = Literal["reserve", "need", "estimate"]
Dealing = Literal["round_robin", "least_requests", "least_kv"]


class Estimate(NamedTuple):
    """What an engine expects running answers to take still: a share of what they may, which falls step by step."""

    initial_share: float = 1.0
    least_share: float = 1.0
    falling_steps: int = 1  # decode iterations in which it falls from the first to the least
    retract_tokens: int = 0  # tokens that each running request is expected to take at least after one was preempted
    clip_tokens: int = 1 << 40  # longer answers are expected to take no more


class SchedulingRule(NamedTuple):
    """The rule of one engine; the default is the reference runtime's."""

    order: Order = "shared"
    """``shared``: decode has the token budget first, prompt chunks what is left. ``prompts_first``: a rank with prompts
    has a step of its own for them, and decode waits. ``mixed_chunk``: as shared, with who ended counted once more."""
    whole_prompts: bool = False
    """A prompt waits for a step whose budget holds the rest of it; only one longer than that is cut."""
    wait_steps: int = 0
    """Beside running requests prompts wait for so many steps (TensorRT-LLM's ``batch_wait_timeout_iters``) ..."""
    wait_share: float = 0.0
    """... unless what a step carries with them reaches this share of its budget (``batch_wait_max_tokens_ratio``)."""
    balance_steps: int = 0
    """Beside running requests prompts wait until each rank has one, at most so many steps (its
    ``attention_dp_config.timeout_iters``, where ``enable_balance``)."""
    overlapped: bool = False
    """Whether the next step is scheduled while one runs: arrivals wait a step longer, and who ends runs once more."""
    overlapped_stages: bool = False
    """Whether that holds with pipeline stages, too: a batch more is in flight than there are stages."""
    batch_slots: bool = False
    """Whether each of the batches that pipeline stages keep in flight has its part of the batch slots; else one may
    have all of them."""
    receive_interval: int = 1
    """Arrivals are received every so many decode iterations, and after every step with prompts."""
    admission: Admission = "reserve"
    estimate: Estimate = Estimate()  # for admission by estimate
    fixed_lengths: bool = False
    """For the same: whether requests say that their answers do not end early, as those of benchmarks do. Then the
    engine sets aside all that they lack, and lets in who leaves enough until every answer is out."""
    block_tokens: int = 1  # KV is taken in blocks of so many tokens, unless whole answers are reserved
    kept_blocks: int = 0  # blocks that the engine keeps for itself
    dealing: Dealing = "round_robin"
    """The rank that a request goes to; ranks without room are passed over where answers are reserved."""


REFERENCE_RULE = SchedulingRule()


def rule_of_engine(
    scheduling: Scheduling | None, machine: str | None = None, open_requests: float = 0.0, fixed_lengths: bool = False
) -> SchedulingRule:
    """Return the rule that an engine's profile states, as it is set up on a machine for so many open requests.

    Of requests that say that their answers do not end early where ``fixed_lengths``, nothing of them cached.

    The reference rule where it states none.
    """
    if scheduling is None:
        return REFERENCE_RULE
    shares = ("initial_share", "least_share", "falling_steps", "retract_tokens", "clip_tokens")
    stated = {name: fact.value for name in shares if (fact := getattr(scheduling, name)) is not None}
    intervals = scheduling.receive_intervals.value.get(machine or "", []) if scheduling.receive_intervals else []
    return SchedulingRule(
        order=scheduling.order.value,
        whole_prompts=scheduling.whole_prompts is not None and scheduling.whole_prompts.value,
        overlapped=scheduling.overlapped.value,
        overlapped_stages=scheduling.overlapped_stages is not None and scheduling.overlapped_stages.value,
        batch_slots=scheduling.batch_slots is not None and scheduling.batch_slots.value,
        receive_interval=([1] + [steps for least, steps in intervals if open_requests >= least])[-1],
        admission=scheduling.admission.value,
        estimate=Estimate(**stated),
        fixed_lengths=fixed_lengths and scheduling.fixed_lengths is not None and scheduling.fixed_lengths.value,
        block_tokens=scheduling.block_tokens.value,
        kept_blocks=scheduling.kept_blocks.value if scheduling.kept_blocks else 0,
        dealing=scheduling.dealing.value,
    )


@cache
def engine_rule(engine: str) -> SchedulingRule:
    """Return how ``reference`` or NAME@VERSION schedules."""
    if engine.partition("@")[0] == "reference":
        return REFERENCE_RULE
    return rule_of_engine(load_engine(engine).scheduling)


def manifest_rule(manifest: "Manifest") -> SchedulingRule:
    """Return how the aggregated instances of a manifest schedule: as its engine does, in the order of its routing.

    As the reference runtime does where the engine has no profile; the newest profile stands for other versions.
    """
    engine, routing, rule = manifest.engine, manifest.routing, REFERENCE_RULE
    if engine.id in engine_names():
        try:
            rule = engine_rule(f"{engine.id}@{engine.version}")
        except BadInput:
            rule = engine_rule(engine.id)
    together: Order = "mixed_chunk" if rule.order == "prompts_first" else rule.order
    order: Order = "prompts_first" if routing.chunks == "prefill_first" else together
    admission: Admission = "need" if routing.decode_reservation == "prompt" else "reserve"
    if rule.admission != "reserve":
        admission = rule.admission
    return rule._replace(order=order, dealing=routing.decode, admission=admission)
