"""`plan models`: the models that are known, and what one of them is made of."""

from cli.options import JSON, Text, options
from cli.output import Screen, print_json
from ground.records import Sourced
from ground.units import format_count
from ground.validation import plain
from models.parameters import count_parameters
from models.spec import ModelSpec
from podplan.catalogue import models as models_of
from podplan.options import argument


@options
def command(
    name: Text = argument("MODEL", "Catalogue name, Hugging Face config.json or model YAML.", default=None),
    json: bool = JSON,
) -> None:
    """Show the models of the catalogue, or one of them with its parameters.

    \b
    Examples:
      plan models
      plan models deepseek-r1
      plan models ./config.json --json
    """
    found = models_of(name)
    if json:
        print_json(found.to_dict())
        return
    if found.one:
        _show(found.specs[0])
        return
    Screen().grid(
        found.specs,
        {
            "name": lambda spec: spec.name,
            ">parameters": lambda spec: format_count(count_parameters(spec).total),
            ">active": lambda spec: format_count(count_parameters(spec).active),
            ">layers": lambda spec: str(spec.layers),
            "attention": _attention,
            "experts": lambda spec: f"{spec.moe.experts_per_token} of {spec.moe.experts}" if spec.moe else "dense",
            "checkpoint": lambda spec: spec.native_dtype,
            "also called": lambda spec: ", ".join(alias for alias in spec.aliases if "/" not in alias),
        },
        spare=["attention", "checkpoint", "also called"],
    )


def _attention(spec: ModelSpec) -> str:
    """Name the kinds of attention of a model, with how many layers have each where they differ."""
    attention = spec.attention
    if attention.kind == "mla":
        if attention.compression:
            return f"blocks of keys, sparse over {attention.indexer.top_k if attention.indexer else 0}"
        return f"MLA, sparse over {attention.indexer.top_k}" if attention.indexer else "MLA"
    if spec.linear_attention:
        return f"{spec.kv_layers} GQA, {spec.linear_attention.layers} delta-net"
    if attention.window:
        return f"GQA, {attention.window.layers} within {attention.window.tokens}"
    return "GQA"


def _show(spec: ModelSpec) -> None:
    counted = count_parameters(spec)
    active = _beside_published(counted.active, spec.published_active_parameters)
    rows = [
        ["parameters", format_count(counted.total), _beside_published(counted.total, spec.published_parameters)],
        ["active parameters", format_count(counted.active), active],
        ["draft layer (MTP)", format_count(counted.mtp_layer) if spec.mtp_layers else "none", ""],
    ]
    for key, value in plain(spec, exclude={"schema_version", "name", "title", "aliases", "source"}).items():
        if not key.startswith("published_"):
            rows += _rows(key, value)
    Screen().table(["field", "value", "beside"], rows, title=f"{spec.title} ({spec.name}), from {spec.source}")


def _rows(key: str, value: object) -> list[list[str]]:
    """Return a row per field, of a section and what is nested in it a row per field of those."""
    if isinstance(value, dict):
        return [row for inner, held in value.items() for row in _rows(f"{key}.{inner}", held)]
    return [[key, "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value), ""]]


def _beside_published(counted: int, published: Sourced | None) -> str:
    """Return the published figure and how far the counted one is from it."""
    if published is None:
        return "counted from the dimensions; no published figure"
    off = counted / published.value - 1
    return f"published {format_count(published.value)} ({off:+.1%}): {published.source}"
