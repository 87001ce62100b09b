"""Published deployments beside a plan: the published strategies, searched on the same devices for the same question."""

import csv
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from planner.costs.deployment import Shared
from planner.instances.space import ROLES, role_rows
from planner.plans.plan import Plan
from planner.question import Pin, Question, Role
from planner.strategy import parse_strategy

TABLE = Path(__file__).parents[1] / "published" / "deployments.csv"


class Published(NamedTuple):
    """A published deployment of a model on a machine; instances are None where not stated."""

    name: str
    models: tuple[str, ...]
    hardware: str
    pins: tuple[tuple[Role, Pin], ...]  # strategy and batch of each role
    instances: tuple[int | None, int | None]
    source: str
    where: str


class Beside(NamedTuple):
    """A published deployment on the devices of a question.

    ``plan`` has the numbers of instances that serve the question best; None where limits or devices allow none.
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
    shared: dict[Role, Shared] = {"prefill": "local", "decode": int(line["decode_dedicated"]) or "local"}
    pins = (
        (role, Pin(strategy=parse_strategy(line[role]), redundant=int(line[f"{role}_redundant"]), shared=own))
        for role, own in shared.items()
    )
    return Published(
        name=line["name"],
        models=tuple(line["models"].split()),
        hardware=line["hardware"],
        pins=tuple(pins),
        instances=(first, second),
        source=line["source"],
        where=line["where"],
    )


def matching(question: Question) -> list[Published]:
    """Return the published deployments of the question's model on its machine that its engine runs."""
    return [
        each
        for each in published_deployments()
        if question.model.name in each.models
        and question.prefill.hardware.name == question.decode.hardware.name == each.hardware
        and all(role_rows(as_deployed(question, each), role) for role in ROLES)
    ]


def as_deployed(question: Question, published: Published) -> Question:
    """Return the question with the published strategies; the search chooses the numbers of instances."""
    return replace(question, pins=published.pins, formats=(), shape="disaggregated")
