"""What a search took for granted: every default that moved the answer, by the flag that changes it."""

from ground.units import format_bytes
from hardware.formats import product_dtype, storable
from hardware.loader import PURCHASE, prices
from models.loader import is_stand_in
from models.spec import ModelSpec
from planner.engines.behaviour import untimed
from planner.instances.reachable import REFERENCE
from planner.instances.space import ROLES, engine_cut
from planner.plans.plan import Plan
from planner.plans.quantised import format_text, own_formats
from planner.question import Machines, Question, Role
from podplan.machines import catalogue_devices, figure_texts
from podplan.question import Asked
from podplan.readers import is_any, is_auto
from podplan.result import picked

_OFFLINE = (
    "requests wait: TTFT is of online ones whose passes they fill under the rule slo of plan simulate, up to 40 % of "
    "the TTFT limit; TPOT is of both"
)


def assumptions(asked: Asked, best: Plan | None) -> dict[str, object]:
    """Return the defaults that moved the answer: what was taken for the flags that were not given."""
    question = asked.question
    limits = {} if asked.job is not None else _limits(question)
    taken = {**limits, **_traffic(asked), **_machines(question), **_model(question, best)}
    if PURCHASE in (question.prefill.hardware.price_basis, question.decode.hardware.price_basis):
        price = prices().electricity_usd_per_kwh.value
        taken["electricity"] = f"{price:g} USD/kWh, in the price of chips that are bought"
    named = {name: value for name, value in taken.items() if name in asked.flags.defaulted}
    told = {} if question.offline is None else {"offline": _OFFLINE}
    if pictures := question.workload.pictures:
        told["pictures"] = f"{pictures.tokens} tokens of every prompt, from {pictures.patches} patches of its pictures"
    if question.prefix_routing is not None:
        told["reuse"] = f"{question.workload.prefix_reuse:.1%} of prompt tokens, as found where they are sent"
    ran = best.question if best else question
    stand_in = (untimed(ran.engine, each.hardware) for each in (ran.prefill, ran.decode))
    if times := dict.fromkeys(filter(None, stand_in)):
        told["engine_times"] = " and ".join(times)
    return named | _implied(asked) | told


def _limits(question: Question) -> dict[str, object]:
    return {
        "ttft": question.ttft_seconds,
        "tpot": question.tpot_seconds,
        "percentile": question.percentile,
        "objective": question.objective,
        "confidence": "0.5, times as predicted",
        "max_utilisation": question.most_utilisation,
    }


def _traffic(asked: Asked) -> dict[str, object]:
    """Defaults that hold without a trace; with one, what it cannot tell."""
    workload = asked.question.workload
    if asked.trace is not None:
        return {} if asked.trace.hash_ids else {"prefix_reuse": workload.prefix_reuse}
    text = workload.input_tokens.mean - (workload.pictures.tokens if workload.pictures else 0)
    means = {"isl": text, "osl": workload.output_tokens.mean}
    known = {side for side in means if f"{side}_histogram" not in asked.flags.defaulted}
    stated: dict[str, object] = {side: mean for side, mean in means.items() if side not in known}
    return stated | {"prefix_reuse": workload.prefix_reuse}


def _held(question: Question) -> str:
    pool = question.prefix_pool
    if pool is None:
        return "of a cache without limit"
    own = format_bytes(pool.capacity_bytes)
    return f"of a pool of {own}" + (f", {pool.ssd_share:.0%} of it off SSD" if pool.ssd_bytes else "")


def _machines(question: Question) -> dict[str, object]:
    pools = {"prefill": question.prefill, "decode": question.decode}
    if question.prefill.hardware is question.decode.hardware and question.prefill.weights == question.decode.weights:
        return {"weights": weights_reason(question, question.prefill)}
    return {"weights": {role: weights_reason(question, machines) for role, machines in pools.items()}}


def weights_reason(question: Question, machines: Machines) -> str:
    """Say which dtype the weights have and why."""
    model, hardware, weights = question.model, machines.hardware, machines.weights
    product = product_dtype(hardware, weights, grouped=model.moe is not None)
    told = weights if product == weights else f"{weights}, dequantised to {product} before each product"
    if weights == model.native_dtype:
        return f"{told}, as {model.name} ships"
    if model.native_dtype in storable(hardware):
        return f"{told}; {model.name} ships {model.native_dtype}"
    return f"{told}, for {model.name} ships {model.native_dtype}, which {hardware.name} does not multiply"


def _model(question: Question, best: Plan | None) -> dict[str, object]:
    engine = "as no engine runs this" if question.engine == REFERENCE else "the best that runs here"
    taken: dict[str, object] = {"kv_dtype": question.kv_dtype, "engine": f"{question.engine}, {engine}"}
    if len(question.drafts) > 1:
        chosen = f"{best.answering.drafts}, " if best else ""
        taken["mtp"] = f"{chosen}best of {' and '.join(str(depth) for depth in question.drafts)}"
    if question.workload.beams > 1 and question.model.mtp_layers:
        taken["mtp"] = "0, as beams are not drafted"
    if max(question.drafts):
        taken["mtp_acceptance"] = question.acceptance
    if question.model.moe is not None:
        taken |= {"microbatches": "auto", "redundant_experts": "auto", "expert_balance": question.balance.kind}
        if question.model.moe.shared_experts:
            taken["shared_experts"] = "auto"
    return taken


def _implied(asked: Asked) -> dict[str, object]:
    """Assumptions that no single flag stands for."""
    question, trace = asked.question, asked.trace
    implied = _stand_in(asked.flags.model or "", question.model)
    if trace is None:
        implied["lengths"] = _lengths(asked)
        implied["arrivals"] = "Poisson" if asked.job is None else "all there when the instances are up"
    else:
        implied["arrivals"] = f"squared CV {question.workload.arrival_squared_cv:.3g}, measured on {trace.name}"
        if trace.spread_seconds:
            implied["arrivals"] = f"{implied['arrivals']}, stamps spread over their grid of {trace.spread_seconds:g} s"
        if trace.left_out:
            implied["requests"] = next(note for note in trace.notes if "left out" in note)
        if question.workload.prefix_reuse and "prefix_reuse" in asked.flags.defaulted:
            reuse = question.workload.prefix_reuse
            implied["reuse"] = f"{reuse:.3g} of the prompt tokens, {_held(question)}"
    chosen = [text for text in (asked.flags.weights, asked.flags.kv_dtype) if text and ("," in text or is_auto(text))]
    if chosen:
        implied["formats"] = f"{format_text(own_formats(question))}, best of {' and '.join(chosen)}"
    if question.engine != REFERENCE and not is_any(asked.flags.engine):
        roles: tuple[Role, ...] = ("mixed",) if question.shape == "aggregated" else ROLES
        implied["engine_layouts"] = {role: engine_cut(question, role) for role in roles}
    if asked.flags.size is None:
        implied["size"] = _sizes(question)
    if question.model.moe is not None and question.balance.kind in ("measured", "none"):
        spread = picked(question.balance.distribution, "name log_sigma drift_log_sigma source")
        implied["expert_load_distribution"] = spread
    figures = figure_texts(machines.hardware for machines in (question.prefill, question.decode))
    if question.goal.priced:
        figures.setdefault("price", "none stated, so the fewest chips are the cheapest")
    return implied | {name: told for name, told in figures.items() if name in asked.flags.defaulted}


def _stand_in(named: str, model: ModelSpec) -> dict[str, object]:
    """Say that a model that is named by another is planned."""
    return {"model": f"{named}, planned as {model.name}, whose shapes it has"} if is_stand_in(named, model) else {}


def _lengths(asked: Asked) -> str:
    """Say how lengths spread: as they are drawn, though decode takes of outputs their moments only."""
    if (workload := asked.question.workload).sessions is not None:
        mean, reuse = workload.input_tokens.mean, workload.prefix_reuse
        return f"prompts of sessions, {mean:.4g} tokens on average, {reuse:.3g} of them of the turns before"
    workload, traffic = asked.question.workload, asked.flags
    spreads = {}
    for side, lengths, file in (
        ("prompts", workload.input_tokens, traffic.isl_histogram),
        ("outputs", workload.output_tokens, traffic.osl_histogram),
    ):
        by = "by mean and CV" if file is None else f"by mean and CV of {file}"
        spreads[side] = f"{by}, {lengths.shape}" if lengths.squared_cv else "fixed"
        if file is not None and side == "prompts":
            spreads[side] = f"as in {file}"
    if len(set(spreads.values())) == 1:
        return spreads["prompts"]
    return "; ".join(f"{side} {spread}" for side, spread in spreads.items())


def _sizes(question: Question) -> str:
    """Say how many devices there are of each machine, all of its entry."""
    machines = {id(each.hardware): each.hardware for each in (question.prefill, question.decode)}.values()
    return ", ".join(f"all of {e.name}: {e.nodes.value:.0f} nodes, {catalogue_devices(e)} devices" for e in machines)
