"""Where the devices do not carry a rate: the constraint that binds, and devices that were solved for it."""

import re
from dataclasses import replace

from planner.question import Question
from planner.search.changes.refusal import answered
from planner.search.changes.shortage import too_few
from planner.search.changes.variations import has_plan, most_carried
from tests.questions import machines, small_question


def asked(rate: float, **fields: object) -> Question:
    """Return a question that needs a rate on the fewest chips."""
    return replace(small_question(model="qwen3-8b", **fields), objective="chips", rate_per_second=rate)  # type: ignore[arg-type]


def test_a_pool_of_some_gpus_of_a_server_grows_by_gpus() -> None:
    """Three GPUs that carry a little less than asked are told of the fourth, not of a whole server."""
    question = asked(1.05 * most_carried(small_question(model="qwen3-8b", devices=3)), devices=3)
    assert "or --devices 4" in answered(question).explanation


def test_a_pool_grows_to_whole_units() -> None:
    """GPUs below a server's eight, servers from there; both dies of a chip."""
    some, server = machines("qwen3-8b", "h100", 2), machines("qwen3-8b", "h100", 8)
    assert [some.grown(factor) for factor in (1.0, 1.6, 3.9, 4.1)] == [2, 4, 8, 16]
    assert [server.grown(factor) for factor in (0.5, 1.0, 1.1)] == [4, 8, 16]
    assert machines("qwen3-8b", "910c", 2).grown(1.1) == 4


def test_a_loss_that_binds_is_named() -> None:
    """The rate is carried as long as nothing is lost."""
    rate = 0.97 * most_carried(small_question(model="qwen3-8b", devices=8))
    question = asked(rate, devices=8, survive="instance")
    assert has_plan(replace(question, survive=None)) and not has_plan(question)
    answer = answered(question)

    assert answer.binding_limit == "survive"
    assert "after losing the worst instance" in answer.explanation and "or no --survive" in answer.explanation


def test_more_devices_that_are_late_come_with_the_limit_that_they_keep() -> None:
    """Memory lacks, and no number of devices keeps TPOT: told is a number that holds the model, and what it keeps."""
    (change,) = answered(small_question(hardware="l40s", devices=1, tpot_seconds=0.004)).changes
    assert change.value is not None and change.value.startswith("4 with --tpot ")
    assert change.question is not None and has_plan(change.question)
    assert change.question.devices == 4 and change.question.tpot_seconds < 0.01


def test_the_short_pool_is_named() -> None:
    """Of a pool for each role, the one that carries less alone."""
    question = asked(200.0, devices=1, decode=("h100", 8))
    question = replace(question, decode=replace(machines("qwen3-8b", "h100", 8), budget="decode"))
    answer = answered(question)

    assert answer.binding_limit == "devices of prefill"
    assert "1 device of h100 carries the prefill of" in answer.explanation
    (sizes,) = re.findall(r"--devices prefill=(\d+),decode=8", answer.explanation)
    assert has_plan(replace(question, prefill=replace(question.prefill, devices=int(sizes))))


def test_within_a_server_the_fewest_that_carry_are_told() -> None:
    """One GPU that just holds a model carries far less than its share: of eight tried at once, four are enough."""
    question = asked(100.0, devices=1)
    told = too_few(question, 1.0, lambda larger: larger.prefill.devices >= 4 and larger.decode == larger.prefill)

    assert "nearest change: --devices 4;" in told


def test_a_refusal_tells_the_rate_that_it_offers() -> None:
    """Not one that sizing refuses by its tolerance: the devices carry what is asked for instead."""
    most = most_carried(small_question(model="qwen3-8b", devices=1, shape="aggregated"))
    for share in (1.003, 1.05):
        told = answered(asked(most * share, devices=1, shape="aggregated")).explanation
        carried, offered = re.findall(r"carries ([\d.]+)/s.*--rate ([\d.]+)/s", told)[0]
        assert carried == offered
