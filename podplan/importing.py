"""`podplan.import_deployment`: what others deployed as a manifest, its headroom, and what is wrong with it."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from deploy.memory import holding, memory_of
from deploy.reading.benchmark import sent
from deploy.reading.engines import Counted
from deploy.reading.foreign import read_source
from deploy.reading.found import BATCH, LENGTH, SHARE, Found, family_of
from deploy.roles import RolePlan, read_roles
from ground.archives import unbroken
from ground.errors import BadInput, Infeasible
from ground.files import check_folder, files_below, read_text, write_files
from hardware.loader import load_hardware
from hardware.spec import Dtype
from models.loader import load_model
from models.spec import ModelSpec
from planner.changeover.given import GivenRole, mended_rate, most_rate, plan_at
from planner.engines.loader import accelerator_of, is_blackwell, load_engine
from planner.engines.memory import dispatch_tokens, hccl_mebibytes
from planner.engines.spec import EngineProfile
from planner.instances.space import Row as SpaceRow
from planner.manifest.document import dump_manifest
from planner.manifest.schema import Manifest
from planner.plans.assemble import assemble
from planner.question import Question
from planner.search.solve import long_run
from planner.strategy import Strategy
from podplan.options import Flags, QuestionFlags, Text, argument, flag, flags_of, switch
from podplan.question import read_question
from podplan.result import Result, Row, picked

GRAPHS, XLLM_GRAPHS = "--acl_graph_decode_batch_size_limit", 16  # of a DP rank; the default at v0.9.1
MOTOR = "user_config.json"  # of MindIE's deployer
ALIKE = 0.01  # of a memory share that is no finding
RDMA = ("rdma", "mlnx", "hca", "roce", "infiniband", "efa")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong or wasted: the role, what it is, the change that mends it, and whether it must be."""

    role: str
    what: str
    change: str | None = None
    blocking: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportFlags(Flags):
    """What is imported, the machine that it runs on, and the traffic and limits that it is held against."""

    source: str = argument(
        "SOURCE",
        "Kubernetes objects, a script, a folder of them, a command line, MindIE's settings, or llm-d's report.",
    )
    hw: Text = flag("HW", "Catalogue name or YAML of the machine.", needed=True)
    model: Text = flag("MODEL", "Catalogue name or config.json [as the command names it].")
    engine: Text = flag("E", "Engine and version, such as vllm@0.33.0 [as the command looks].")
    weights: Text = flag("DTYPE", "Format of the weights [as shipped, or as --quantization says].")
    isl: Text = flag("TOKENS", "Mean prompt tokens [those of a benchmark in the folder, else 4096].")
    osl: Text = flag("TOKENS", "Mean output tokens [of the same, else 1024].")
    isl_cv: Text = flag("CV", "Standard deviation of prompts over their mean [0].")
    osl_cv: Text = flag("CV", "The same of outputs [0].")
    prefix_reuse: Text = flag("SHARE", "Cached share of prompts [that of a benchmark in the folder, else 0].")
    images: Text = flag("N@WxH", "Pictures of a prompt besides --isl [those of the same, else none].")
    video: Text = flag("N@WxH", "Frames of a video of a prompt besides --isl [the same].")
    rate: Text = flag("RATE", "Requests that arrive, such as 10/s [the most within the limits].", unit="/s")
    ttft: Text = flag("DURATION", "Limit on TTFT [2s].", unit="s")
    tpot: Text = flag("DURATION", "Limit on TPOT [50ms].", unit="s")
    percentile: Text = flag("P", "At which the limits hold [99].")
    out: Path | None = flag("DIR", "Folder for manifest.yaml.")
    force: bool = switch("Replace a manifest that is there.")


@dataclass(frozen=True, kw_only=True)
class ImportResult(Result):
    """A deployment as it was read.

    Attributes:
        roles: each role of the deployment with what an instance is.
        manifest: it as a manifest; None where the engine's rules or its memory do not let it run.
        most_per_second: the largest rate that keeps the limits; None where none does.
        mended_per_second: the same after the changes of the findings; None where there is nothing to change.
        asked_per_second: the rate that was given.
        findings: what is wrong, what must be mended first.
    """

    roles: tuple[tuple[Found, Counted], ...]
    question: Question
    manifest: Manifest | None
    most_per_second: float | None
    mended_per_second: float | None
    asked_per_second: float | None
    findings: tuple[Finding, ...]

    @property
    def feasible(self) -> bool:
        """Whether it runs and keeps the limits at the rate that was asked."""
        if any(finding.blocking for finding in self.findings) or self.most_per_second is None:
            return False
        return self.asked_per_second is None or self.most_per_second >= self.asked_per_second

    @property
    def headroom(self) -> float | None:
        """What more of the asked rate it would carry, as a share; None without a rate."""
        if self.asked_per_second is None or self.most_per_second is None:
            return None
        return self.most_per_second / self.asked_per_second - 1

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        must = sum(finding.blocking for finding in self.findings)
        most = self.most_per_second
        said = "keeps the limits at no rate" if most is None else f"carries {most:.3g}/s within the limits"
        return f"{self.question.model.name} {said}; {must} things must be mended, {len(self.findings) - must} could be"

    def to_dict(self) -> dict[str, Any]:
        """Return what ``plan import --json`` prints."""
        return {
            **picked(self, "feasible requests_per_second=most_per_second requests_per_second_mended=mended_per_second"),
            **picked(self, "asked_requests_per_second=asked_per_second headroom"),
            "roles": self.rows(),
            "findings": [asdict(finding) for finding in self.findings],
        }

    def rows(self) -> Sequence[Row]:
        """Return a row per role: degrees and limits of an instance."""
        return [
            picked(found, "name role engine instances nodes") | asdict(counted) | {"assumed": ", ".join(found.assumed)}
            for found, counted in self.roles
        ]


def import_deployment(
    source: str, *, hw: str, out: str | Path | None = None, force: bool = False, **given: Any
) -> ImportResult:
    """Return a running deployment as a manifest with its headroom, what is wrong, and what would mend it.

    Keywords are the flags of ``plan import``; the manifest is written where a folder is given. Raises BadInput where
    the source or a flag cannot be read.
    """
    folder = None if out is None else Path(out)
    flags = flags_of(ImportFlags, {"source": source, "hw": hw, "out": folder, "force": force, **given})
    found = read_source(*_text_of(flags.source))
    _check_pair(found)
    if flags.isl is None and flags.osl is None:
        own = _benchmarked(flags.source).items()
        flags = replace(flags, **{name: value for name, value in own if getattr(flags, name) is None})
    profile = load_engine(flags.engine or found[0].engine)
    model = load_model(flags.model or _model_of(found[0]))
    question = _question(flags, found, profile, model)
    longest = round(question.workload.input_tokens.mean + question.workload.output_tokens.mean)
    roles = tuple((role, role.counted(model.moe.experts if model.moe else 0, longest)) for role in found)
    question = replace(question, drafts=tuple(sorted({counted.drafts for _, counted in roles if counted})))
    sides = [_side(question, role, counted) for role, counted in roles]
    findings = [each for role, own in roles for each in told_by_files(role, own, longest, question, profile)]
    most, least = most_rate(sides)
    fullest = plan_at(sides, most) if most else None
    fullest = fullest and long_run(fullest)
    most = fullest.requests_per_second if fullest else None
    mended = mended_rate(sides, most)
    late = most is None or mended is not None
    findings += [each for role, side in zip(found, sides, strict=True) for each in told_by_batches(role, side, late)]
    asked = question.rate_per_second
    manifest = None
    if least is None:
        findings.append(Finding("all", "no request fits beside the weights"))
    else:
        planned = plan_at(sides, asked) if asked and most and asked < most else fullest
        manifest = assemble(planned or least, {})
        findings += told_by_engine(manifest, profile, roles)
    if manifest is not None and flags.out is not None:
        check_folder(flags.out, ("manifest.yaml",), force=flags.force, flag="--out")
        write_files({flags.out / "manifest.yaml": dump_manifest(manifest)}, force=flags.force)
    return ImportResult(
        roles=roles,
        question=question,
        manifest=manifest,
        most_per_second=most,
        mended_per_second=mended,
        asked_per_second=asked,
        findings=tuple(sorted(findings, key=lambda finding: not finding.blocking)),
    )


def _text_of(source: str) -> tuple[str, dict[str, str]]:
    """Return a source and files beside it; of a folder its Kubernetes objects, else its scripts and their hosts."""
    if not os.path.isdir(source):  # not Path.is_dir, which raises at names that are too long
        return source, {}
    files = files_below(Path(source))
    if any(path.name == "Chart.yaml" for path in files):
        raise BadInput(
            f"SOURCE: {source} is a Helm chart; write what `helm template` makes of it to a file, and give that"
        )
    settings = {path.name: read_text(path) for path in files if path.suffix in (".yaml", ".yml", ".json")}
    if MOTOR in settings:
        return settings[MOTOR], settings
    objects = [text for text in settings.values() if re.search("^kind:", text, re.MULTILINE)]
    scripts = [read_text(path) for path in files if path.suffix == ".sh"]
    if objects or scripts:
        hosts = [read_text(path) for path in files if path.name == "hosts.tsv"]
        return "\n---\n".join(objects or [*scripts, *hosts]), settings
    raise BadInput(f"SOURCE: {source} has no YAML file of objects and no script")


def _benchmarked(source: str) -> dict[str, Any]:
    """Return the traffic that a benchmark in a folder sends, as ``plan deploy`` writes it; none where none is."""
    files = files_below(Path(source)) if os.path.isdir(source) else ()
    with unbroken(f"SOURCE: {source}: its benchmark has lengths that are no numbers; give --isl and --osl"):
        return sent("\n".join(read_text(path) for path in files if path.stem == "benchmark"))


def _model_of(found: Found) -> str:
    """Return the catalogue's name of the model that a command names by its path or repository."""
    names = [
        found.model,
        found.model.rpartition("/")[2].removeprefix("Meta-"),
        found.flags.get("--served-model-name") or "",
    ]
    for name in filter(None, [*names, *(QUANTISED.sub("", name) for name in names)]):
        try:
            return load_model(name.lower()).name
        except BadInput:
            continue
    raise BadInput(f"--model: {found.model[:60]!r} is not of the catalogue; name the model, or its config.json")


def _question(flags: ImportFlags, found: Sequence[Found], profile: EngineProfile, model: ModelSpec) -> Question:
    """Return the question that a deployment answers: its own machine, formats and drafts, the traffic as given."""
    usual = None if profile.engine in UNTOLD else model.native_dtype
    formats = {role.role: _format_of(role) or usual for role in found}
    told = ",".join(f"{role}={held}" for role, held in formats.items() if held)
    told = told.removeprefix("mixed=")
    hardware = load_hardware(flags.hw or "")
    cached, chip = (found[-1].flags.get("--kv-cache-dtype") or "auto").lower(), int(hardware.devices_per_chip.value)
    if cached == "auto":
        where = accelerator_of(hardware)
        cached = profile.cache.unasked(model.architecture, where, blackwell=is_blackwell(hardware))
    devices = sum(role.devices * role.instances for role in found)
    asked = read_question(
        QuestionFlags(
            model=model.name,
            hw=flags.hw,
            devices=str(-(-devices // chip) * chip),
            engine=f"{profile.engine}@{profile.versions.pinned}",
            weights=flags.weights or told or None,
            kv_dtype="fp8" if cached.startswith("fp8") else "bf16",
            shape="aggregated" if len(found) == 1 else "disaggregated",
            objective="throughput" if flags.rate is None else None,
            **{name: getattr(flags, name) for name in TRAFFIC},
        )
    )
    return asked.question


def _format_of(role: Found) -> Dtype | None:
    """Return the format of a role's weights by its flag or their folder's name; None where neither tells it."""
    named = QUANTISED.search(role.model)
    return FORMATS.get(role.flags.get("--quantization") or (named[1].lower() if named else ""))


UNTOLD = ("xllm", "mindie")  # whose files leave the format to the weights' own: the machine's usual one
FORMATS: dict[str, Dtype] = {name: name for name in ("bf16", "fp8", "int8", "int4", "mxfp4", "nvfp4")}
FORMATS |= {"ascend": "int8", "modelslim": "int8", "w8a8": "int8", "fp4": "nvfp4", "modelopt_fp4": "nvfp4"}
QUANTISED = re.compile(r"[-/](fp8|fp4|nvfp4|mxfp4|w8a8|int8|int4|bf16)(-[a-z]+)?\Z", re.IGNORECASE)  # of a folder
TRAFFIC = ("isl", "osl", "isl_cv", "osl_cv", "prefix_reuse", "images", "video", "rate", "ttft", "tpot", "percentile")


def _side(question: Question, found: Found, counted: Counted) -> GivenRole:
    """Return a role as the planner sees it; BadInput where its degrees are none of the planner's."""
    dp, ep = counted.attention_dp, counted.moe_ep or 1
    tensor, stages = counted.attention_tp, counted.pp
    strategy = Strategy(attention_tp=tensor, attention_dp=dp, moe_tp=tensor * dp // ep, moe_ep=ep, pp=stages)
    return GivenRole(
        question=question,
        role=found.role,
        instances=found.instances,
        row=SpaceRow(strategy, counted.redundant or 0, 0, counted.microbatches),
        sequences=counted.sequences,
        tokens=None if counted.tokens is None else counted.tokens * stages,  # an engine is told those of one part
        drafts=counted.drafts,
    )


def _check_pair(found: Sequence[Found]) -> None:
    """Raise BadInput unless it is one role of aggregated instances, or prefill and decode."""
    roles = [role.role for role in found]
    if roles not in (["mixed"], ["prefill", "decode"]):
        said = ", ".join(f"{role.name} ({role.role})" for role in found)
        raise BadInput(f"SOURCE: {said}: what is read here is one aggregated role, or one prefill and one decode role")
    if len({role.engine for role in found}) > 1:
        raise BadInput("SOURCE: prefill and decode must be of one engine")


def told_by_files(
    role: Found, counted: Counted, longest: int, question: Question, profile: EngineProfile
) -> list[Finding]:
    """Return what the files alone tell: unknown flags, idle devices, lengths, graphs, caches, RDMA."""
    flags, found = role.flags, list[Finding]()

    def tell(what: str, change: str, blocking: bool = True) -> None:
        found.append(Finding(role.name, what, change, blocking))

    for name in role.unknown:
        tell(f"{profile.title} {role.release} does not know {name}", f"drop {name}")
    if counted.devices > counted.ranks:
        what = f"{counted.devices - counted.ranks} of {counted.devices} devices of an instance have no rank"
        tell(what, "fewer devices, or more TP or DP", False)
    length = LENGTH.get(family_of(role.engine))
    if length in flags and counted.longest is not None and counted.longest < longest:
        what = f"requests of {longest} tokens are refused past {counted.longest}"
        tell(what, f"{length} {counted.longest} -> {longest}")
    for what, change in _slower(role, counted, question):
        tell(what, change, False)
    wide = role.nodes > 1 or counted.kv_role is not None
    if role.kubernetes and wide and role.engine in ("vllm", "sglang", "trtllm") and not role.flags.get("--device"):
        if not any(word in name.lower() for name in role.limits for word in RDMA):
            tell("its pods ask for no RDMA device, so that KV and experts go over TCP", "limits: {rdma/ib: 1}")
        elif "IPC_LOCK" not in role.capabilities:
            tell("RDMA cannot pin memory without IPC_LOCK", "capabilities: {add: [IPC_LOCK]}")
    return found


def _slower(role: Found, counted: Counted, question: Question) -> Iterator[tuple[str, str]]:
    """Yield what makes steps slower than they need be, and what would mend it: no graphs, prefixes computed anew."""
    flags = role.flags
    if "--enforce-eager" in flags and role.role != "prefill":
        yield "every step launches its kernels one by one", "drop --enforce-eager"
    least = int(flags.get(GRAPHS) or XLLM_GRAPHS)
    if flags.get("--enable_graph") == "true" and least < counted.sequences:
        yield (
            f"steps of more than {least} requests launch their kernels one by one",
            (f"{GRAPHS} {least} -> {counted.sequences}"),
        )
    uncached = {"--no-enable-prefix-caching", "--disable-radix-cache"} & flags.keys()
    if uncached and question.workload.prefix_reuse and role.role != "decode":
        yield "reused prefixes are computed again", f"drop {min(uncached)}"


def told_by_batches(role: Found, side: GivenRole, late: bool) -> list[Finding]:
    """Return what the batch is: more requests than memory holds, or, where plans are ``late``, than TPOT allows.

    A plan has the batch that memory holds and the rate that keeps TPOT, so a full one may well pass it.
    """
    if side.role == "prefill" or not side.room:
        return []
    found, name = [], BATCH[family_of(role.engine)]
    ranks = side.row.strategy.attention_dp if role.engine in ("sglang", "xllm") else 1
    stated = side.sequences
    if side.batch < stated:
        what = f"its {stated} requests per DP rank need more KV than there is: {side.batch} of this workload fit"
        change = f"{name} {stated * ranks} -> {side.batch * ranks}"
        found.append(Finding(role.name, what, change, blocking=False))
    timely = side.timely_batch() if late else 0
    if 0 < timely < side.batch:
        what = f"a full batch of {side.batch} per DP rank passes TPOT; {timely} keep it"
        change = f"{name} {stated * ranks} -> {timely * ranks}"
        found.append(Finding(role.name, what, change))
    return found


def told_by_engine(manifest: Manifest, profile: EngineProfile, roles: Sequence[tuple[Found, Counted]]) -> list[Finding]:
    """Return what the engine's own rules say: layouts that it does not run, memory, buffers of exchanges."""
    try:
        planned = {role.role: role for role in read_roles(manifest, profile, None)}
    except Infeasible as refused:
        return [Finding("all", str(refused))]
    found = []
    for role, counted in roles:
        found += [*_memory(profile, planned[role.role], role, counted), *_buffers(planned[role.role], role)]
    return found


def _memory(profile: EngineProfile, planned: RolePlan, role: Found, counted: Counted) -> list[Finding]:
    name = SHARE[family_of(role.engine)]
    try:
        held = memory_of(profile, planned)
    except Infeasible as refused:
        return [Finding(role.name, str(refused))]
    if counted.memory_frac <= held.most + ALIKE or name not in role.flags:
        return []
    what = f"{counted.memory_frac:g} of the memory leaves too little for graphs, activations and exchange buffers"
    return [Finding(role.name, what, f"{name} {counted.memory_frac:g} -> {min(held.fraction, held.most):g}")]


def _buffers(planned: RolePlan, role: Found) -> list[Finding]:
    """Return buffers of the exchange of experts that are too small for the batch."""
    held, needs = holding(role.engine, planned), list[tuple[str, int, int]]()  # variable, least value, default
    if role.engine == "sglang" and role.flags.get("--moe-a2a-backend") == "deepep" and role.role != "prefill":
        needs.append(("SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", int(dispatch_tokens(held)), 128))
    if planned.accelerator == "ascend":
        needs.append(("HCCL_BUFFSIZE", int(hccl_mebibytes(held)), 200))
    found = []
    for name, needed, default in needs:
        given = role.environment.get(name, str(default))
        if given.isdigit() and int(given) < needed:
            what = f"the exchange of experts needs {name} of {needed} at this batch, and has {given}"
            found.append(Finding(role.name, what, f"{name}={needed}"))
    return found
