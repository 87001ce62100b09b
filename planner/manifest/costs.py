"""Step costs as they stand in a manifest: the mirror of ``terms.StepCost`` with every number checked."""

from typing import Annotated, Any, Literal, get_args

from pydantic import Field

from ground.records import Name
from ground.strict import Strict
from planner.manifest.terms import CommunicationTerm, ComputeTerm, CurveTerm, Rule, Stage, StepCost, Term

ReachVariable = Literal[  # of layers in which some keys are out of reach
    "kv_within",
    "context_within",
    "pairs_within",
    "kv_beyond",
    "chunk_chosen",
    "pairs_chosen",
    "picked",
    "chunk_short",
    "context_short",
    "pairs_short",
]
Variable = Literal[
    "one",
    "decode",
    "chunk",
    "pairs",
    "keys",
    "mean",
    "fair",
    "shared",
    "tokens",
    "kv",
    "context",
    "rows",
    "routed",
    "hit",
    ReachVariable,
]
REACH_VARIABLES = frozenset(get_args(ReachVariable))
EXPERT_VARIABLES = frozenset({"fair", "routed", "hit", "shared"})
VARIABLES = frozenset(get_args(Variable))
TERM_GROUPS = ("terms", "head_terms", "draft_terms")

Natural = Annotated[int, Field(strict=True, ge=0, le=2**53)]
Positive = Annotated[int, Field(strict=True, gt=0, le=2**53)]
# Bounds far past any machine: products and quotients of a few numbers between them neither overflow nor vanish.
Amount = Annotated[float, Field(ge=0, le=1e30)]
Rate = Annotated[float, Field(ge=1e-30, le=1e30)]
Result = Annotated[float, Field(ge=0)]  # what is computed from amounts and rates, and may lie past their bounds
Share = Annotated[float, Field(ge=0, le=1)]
LinearForm = Annotated[dict[Variable, Amount], Field(max_length=len(VARIABLES))]
Protocols = Annotated[tuple[tuple[Amount, Rate], ...], Field(min_length=1, max_length=16)]


class _Mirror(Strict):
    """The manifest's form of a term; every field but ``kind`` is the term's."""

    def to_term(self) -> Any:
        """Return the term that ``stepcost.evaluate`` takes."""
        made: Any = next(term for term, model in _MODELS.items() if model is type(self))
        return made(**{name: value for name, value in self if name != "kind"})


class ComputeTermModel(_Mirror):
    """A kernel on one device; see ``terms.ComputeTerm``."""

    kind: Literal["compute"] = "compute"
    name: Name
    stage: Stage
    flops: LinearForm
    idle_flops: LinearForm
    flops_per_second: Rate
    bytes: LinearForm
    bytes_per_second: Rate
    floor_seconds: Amount
    serial: Share = 0.0
    slow: Amount = 0.0
    slow_seconds: Amount = 0.0
    launches: Natural = 1
    residual: Amount = 0.0
    share: Share = 1.0


class CommunicationTermModel(_Mirror):
    """A collective or an exchange; protocols are [latency seconds, bytes per second]."""

    kind: Literal["communication"] = "communication"
    name: Name
    stage: Stage
    bytes: LinearForm
    protocols: Protocols
    launches: Natural = 1
    residual: Amount = 0.0


class CurveTermModel(_Mirror):
    """Kernels timed together: seconds at loads 1, 2, 4, ...; see ``terms.CurveTerm``."""

    kind: Literal["curve"] = "curve"
    name: Name
    stage: Stage
    load: LinearForm
    seconds: Annotated[tuple[Rate, ...], Field(min_length=2, max_length=64)]
    flops: LinearForm
    flops_per_second: Rate
    bytes: LinearForm
    bytes_per_second: Rate
    launches: Natural = 1
    residual: Amount = 0.0


AnyTermModel = ComputeTermModel | CommunicationTermModel | CurveTermModel
TermModel = Annotated[AnyTermModel, Field(discriminator="kind")]


_MODELS: dict[type[Term], type[AnyTermModel]] = {
    ComputeTerm: ComputeTermModel,
    CommunicationTerm: CommunicationTermModel,
    CurveTerm: CurveTermModel,
}


class StepCostModel(Strict):
    """Terms of one phase and how they compose; every field is that of ``terms.StepCost``."""

    terms: list[TermModel] = Field(max_length=256)
    head_terms: list[TermModel] = Field(default=[], max_length=64)
    draft_terms: list[TermModel] = Field(default=[], max_length=64)
    dense_layers: Natural
    moe_layers: Natural
    queries_per_sequence: int = Field(strict=True, ge=1, le=4096)
    attention_ranks: Positive
    expert_ranks: Positive
    shared_ranks: Natural
    experts: Natural
    experts_per_token: Natural
    slots_per_rank: Amount
    balance: float = Field(default=1.0, ge=1)
    sampling_deviations: Amount = 0.0
    rule: Rule
    cores: int = Field(default=0, strict=True, ge=0, le=1024)
    communication_share: Share = 0.0
    communication_dilation: float = Field(default=1.0, ge=1)
    domains: Natural = 0
    pipeline_stages: int = Field(default=1, strict=True, ge=1, le=1024)
    pipeline_hop: CommunicationTermModel | None = None
    pipeline_bubble: bool = False
    pipeline_round: bool = False
    host_seconds: Amount = 0.0
    launch_seconds: Amount = 0.0
    runs_ahead: bool = True
    prompt_seconds: Amount = 0.0
    reach_tokens: Natural = 0
    loading_seconds: Amount = 0.0

    @classmethod
    def from_step_cost(cls, cost: StepCost) -> "StepCostModel":
        """Return the manifest's form of ``cost``, whose fields must be numbers, not arrays."""
        fields: dict[str, Any] = {field: getattr(cost, field) for field in cls.model_fields}
        for group in TERM_GROUPS:
            fields[group] = [_MODELS[type(term)].model_validate(term, from_attributes=True) for term in fields[group]]
        return cls.model_validate(fields, from_attributes=True)

    def to_step_cost(self) -> StepCost:
        """Return the step cost that ``stepcost.evaluate`` takes; floats are those of the file, bit for bit."""
        fields = dict(self)
        fields |= {group: tuple(term.to_term() for term in fields[group]) for group in TERM_GROUPS}
        return StepCost(**fields | {"pipeline_hop": self.pipeline_hop.to_term() if self.pipeline_hop else None})
