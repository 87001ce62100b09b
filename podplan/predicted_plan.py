"""A configuration that was predicted as a plan: it is given, what it works with is searched."""

from planner.instances.reachable import REFERENCE
from podplan.options import QuestionFlags
from podplan.planning import PlanResult, solved
from podplan.prediction import PredictResult, strategy_text
from podplan.question import read_question

ROOM = 1.25
"""Limits over what was predicted, so that a queue fits between."""
PASSES = 3.0
"""The same of TTFT, in passes of a prompt: it waits for one that runs."""
SHARED = (
    "model hw nodes engine weights kv_dtype mtp mtp_acceptance expert_balance expert_skew prefix_reuse isl osl beams "
    "images video graphs host_jitter"
)
ANSWER_TOKENS = 1024


def planned(found: PredictResult) -> PlanResult:
    """Return the best plan with one instance as predicted, and of the other role what it needs to work.

    Requests are as long as the prediction's: in decode their mean KV is what was given. Limits are ``ROOM`` times the
    predicted TPOT and ``PASSES`` times the predicted TTFT, those of the other role the usual ones.
    """
    flags, answer = found.flags, found.prediction
    asked, role = answer.configuration, answer.configuration.phase
    redundant, shared = int(answer.deployment.redundant), int(answer.deployment.shared_ranks)
    given = {name: getattr(flags, name) for name in SHARED.split()}
    given["engine"] = given["engine"] or REFERENCE  # whose host costs a prediction takes
    if role == "decode":
        output = min(ANSWER_TOKENS, round(asked.kv_tokens))
        given |= {"isl": f"{max(round(asked.kv_tokens - output / 2), 1)}", "osl": f"{output}"}
    open_requests = asked.concurrency if role == "mixed" else asked.requests
    held = asked.batch if open_requests is None else -(-open_requests // asked.strategy.attention_groups)
    tokens = {"prefill": asked.tokens, "mixed": asked.batched_tokens}
    moe = asked.model.moe is not None
    ttft, tpot = answer.ttft_seconds, answer.tpot_seconds
    given |= {
        "strategy": f"{role}={strategy_text(answer)}",
        "instances": f"{role}=1",
        "batch": None if role == "prefill" else f"{role}={held}",
        "tokens": f"{role}={tokens[role]}" if role in tokens else None,
        "microbatches": f"{answer.microbatches}" if moe else None,
        "redundant_experts": f"{role}={redundant}" if moe else None,
        "shared_experts": f"{role}={f'dedicated={shared}' if shared else 'local'}" if moe else None,
        "ttft": None if ttft is None else f"{PASSES * ttft}s",
        "tpot": None if tpot is None else f"{ROOM * tpot}s",
    }
    return solved(read_question(QuestionFlags(**given)), beside=False)
