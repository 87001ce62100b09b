"""Published deployments beside a plan: evaluated like any candidate, on the same devices, for the same question."""

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from planner.instances.decode_candidates import Count
from planner.instances.space import Row, possible
from planner.offers.decode_offers import decode_offers
from planner.offers.prefill_offers import prefill_offers
from planner.plans.plan import Plan
from planner.question import Question
from planner.search.gather import Option, make_side
from planner.strategy import parse_strategy

TABLE = Path(__file__).parents[1] / "published" / "deployments.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """How somebody deployed a model on a machine; instances are None where they are not stated."""

    name: str
    models: tuple[str, ...]
    hardware: str
    prefill: Row
    decode: Row
    instances: tuple[int | None, int | None]
    source: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A published deployment on the devices of a question.

    ``plan`` has as many instances of each as serve the question best; None where the limits or the devices allow
    none.
    """

    published: Published
    plan: Plan | None


@cache
def published_deployments() -> tuple[Published, ...]:
    """Return the table, in its order."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        return tuple(_published(line) for line in csv.DictReader(file))


def _published(line: dict[str, str]) -> Published:
    first, second = (int(text) if text else None for text in (line["prefill_instances"], line["decode_instances"]))
    return Published(
        name=line["name"],
        models=tuple(line["models"].split()),
        hardware=line["hardware"],
        prefill=Row(parse_strategy(line["prefill"]), int(line["prefill_redundant"]), 0),
        decode=Row(parse_strategy(line["decode"]), int(line["decode_redundant"]), int(line["decode_dedicated"])),
        instances=(first, second),
        source=line["source"],
        where=line["where"],
    )


def matching(question: Question) -> list[Published]:
    """Return the published deployments of the question's model on its machine, where both roles run on it."""
    return [
        each
        for each in published_deployments()
        if question.model.name in each.models
        and question.prefill.hardware.name == question.decode.hardware.name == each.hardware
        and possible(question, each.prefill.strategy, 0, each.prefill.redundant)
        and possible(question, each.decode.strategy, each.decode.dedicated, each.decode.redundant)
    ]


def published_option(question: Question, published: Published, transfer_seconds: float) -> Option:
    """Return the columns of the published instances at their best batch and budgets."""
    count = Count()
    prefill = prefill_offers(question, [published.prefill], count)
    decode = decode_offers(question, [published.decode], count, transfer_seconds)
    return Option(question, (make_side(question, "prefill", prefill), make_side(question, "decode", decode)))
