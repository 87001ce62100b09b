"""A question of `plan check` about a manifest: a fixed deployment, the traffic and the limits it is weighed against."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ground.errors import BadInput
from planner.checks.deployed import Deployed
from planner.checks.manifests import manifest_on
from planner.checks.margins import Limits
from planner.manifest.caching import cache_of
from planner.manifest.document import read_manifest
from planner.manifest.schema import Manifest
from planner.plans.day import Window
from planner.plans.expectation import planned_rate, workload_of
from planner.plans.recorded import unlike_steps
from planner.survival import Loss
from planner.workload import Trace, Workload
from podplan.on_trace import rows_of
from podplan.options import QuestionFlags, flag_name
from podplan.question_files import CHECK_KEYS, CHECKED
from podplan.readers import read_limit, read_percentile, read_survive
from podplan.traffic import LENGTH_FIELDS, AskedTraffic, read_traffic, with_hits

_OF_A_MANIFEST = (*LENGTH_FIELDS, "prefix_reuse", "rate", "rate_profile", "trace", "format")
_LIMITS = ("ttft", "tpot", "percentile", "survive")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestQuestion:
    """A fixed deployment, the traffic and the limits that it is weighed against."""

    path: str
    manifest: Manifest
    workload: Workload
    limits: Limits
    survive: Loss | None
    day: tuple[Window, ...] = ()
    rows: Trace | None = None
    """Of a trace that can be played."""
    traced: bool = False
    """Whether a trace was given."""

    @property
    def deployed(self) -> Deployed:
        """What the manifest deploys, under the traffic."""
        return manifest_on(self.manifest, self.workload, self.rows)

    @property
    def unlike(self) -> str | None:
        """Why a trace cannot be played on it."""
        return unlike_steps(self.manifest)


def read_manifest_question(values: Mapping[str, str]) -> ManifestQuestion:
    """Return the question about a manifest; its own traffic and limits hold where none are given."""
    for key in values:
        if key not in (*_OF_A_MANIFEST, *_LIMITS, *CHECK_KEYS, *CHECKED):
            raise BadInput(f"{flag_name(key)}: a manifest fixes the deployment; leave one of the two out")
    path = values["manifest"]
    manifest = read_manifest(Path(path))
    asked = _traffic(values, manifest)
    rate = planned_rate(manifest) if asked.rate_per_second is None else asked.rate_per_second
    levels = manifest.service_levels
    ttft = levels.ttft_seconds if "ttft" not in values else read_limit(values["ttft"], "--ttft")
    tpot = levels.tpot_seconds if "tpot" not in values else read_limit(values["tpot"], "--tpot")
    if ttft is None and tpot is None:
        raise BadInput(f"--ttft: {path} states no service levels; give --ttft or --tpot")
    percentile = read_percentile(values["percentile"]) if "percentile" in values else levels.percentile
    limits = Limits(ttft_seconds=ttft, tpot_seconds=tpot, percentile=percentile, rate_per_second=rate)
    return ManifestQuestion(
        path=path,
        manifest=manifest,
        workload=asked.workload,
        limits=limits,
        survive=read_survive(values.get("survive")),
        day=asked.day,
        rows=rows_of(asked.trace, reuse_stated="prefix_reuse" in values),
        traced=asked.trace is not None,
    )


def _traffic(values: Mapping[str, str], manifest: Manifest) -> AskedTraffic:
    """Return lengths, rate and day: of a trace, or the manifest's with what was given in their place."""
    flags = QuestionFlags(**{key: value for key, value in values.items() if key in _OF_A_MANIFEST})
    known = workload_of(manifest.workload)
    return read_traffic(
        flags, manifest.model.spec, lambda trace: with_hits(trace, cache_of(manifest, trace.block_tokens)), known
    )
