"""One parallel strategy in MixServe's notation: what it means, how it reads, prints and fits a model.

    strategy  = attention [", " experts] ["[PP=" degree "]"]
    attention = block ["x" domains]
    block     = parallel {"+" parallel}
    parallel  = name "=" degree

(MixServe section III-B1; degrees need not be powers of two, ``SP`` and domains are this project's.)
"""

import re
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from ground.errors import BadInput
from models.spec import ModelSpec

LARGEST_DEGREE = 1_000_000
TIMES = "\N{MULTIPLICATION SIGN}"
BlockKind = Literal["attention", "experts", "both"]
ACCEPTED: dict[BlockKind, tuple[str, ...]] = {
    "attention": ("TP", "DP", "SP"),
    "experts": ("TP", "EP", "DP"),
    "both": ("TP", "DP", "SP", "EP"),
}


class Strategy(NamedTuple):
    """Degrees of one instance. All degrees count devices.

    Attention: ``attention_dp`` groups of ``attention_tp`` devices; with ``staged`` the group runs
    SP-TP-SP (CloudMatrix384 section 4.3.1), written ``SP=n``. Experts: ``moe_ep`` groups of
    ``moe_tp`` devices over the same devices. ``pp`` stages, each of ``devices_per_stage``.
    ``domains`` > 0 is attention-expert disaggregation: that many attention domains beside the
    ``moe_tp * moe_ep`` expert devices; ``attention_dp`` then counts the groups of one domain.

    A request belongs to one attention group and its tokens are known to that group's
    ``attention_tp`` devices: replicated on all of them under TP, 1/``attention_tp`` on each under
    SP outside the attention itself. A token visits every stage. A dense model has no experts; its
    ``moe_tp`` and ``moe_ep`` mirror ``attention_tp`` and ``attention_dp``.
    """

    attention_tp: int = 1
    attention_dp: int = 1
    staged: bool = False
    moe_tp: int = 1
    moe_ep: int = 1
    pp: int = 1
    domains: int = 0

    @property
    def disaggregated(self) -> bool:
        """Whether attention and experts run on different devices."""
        return self.domains > 0

    @property
    def attention_groups(self) -> int:
        """Attention data-parallel groups of one stage, over all domains."""
        return self.attention_dp * max(self.domains, 1)

    @property
    def attention_devices(self) -> int:
        """Devices of one stage that run attention: tp * dp * domains."""
        return self.attention_tp * self.attention_groups

    @property
    def expert_devices(self) -> int:
        """Devices of one stage that run experts: tp * ep."""
        return self.moe_tp * self.moe_ep

    @property
    def devices_per_stage(self) -> int:
        """Devices of one pipeline stage; disaggregated, attention and expert devices add up."""
        return self.attention_devices + (self.expert_devices if self.disaggregated else 0)

    @property
    def devices(self) -> int:
        """Devices of the instance."""
        return self.pp * self.devices_per_stage


class _Token(NamedTuple):
    text: str
    start: int


class _Text(NamedTuple):
    """A strategy's text beside the flag that it came from, for messages."""

    text: str
    flag: str

    @property
    def quoted(self) -> str:
        """The text as a message shows it, at most 60 characters of it."""
        return repr(self.text if len(self.text) <= 60 else self.text[:57] + "...")

    def error(self, token: _Token, message: str) -> BadInput:
        """Return the error that points at ``token``; positions count characters from 1."""
        what = repr(token.text[:20]) if token.text else "the end"
        return BadInput(f"{self.flag}: {what} at position {token.start + 1} of {self.quoted}: {message}")


class _Cursor:
    """Walks over the tokens of a text."""

    def __init__(self, source: _Text) -> None:
        """Split the text into letters, other runs and the signs of the grammar."""
        pattern = rf"[=+,\[\]{TIMES}]|[A-Za-z]+|[^\sA-Za-z=+,\[\]{TIMES}]+"
        self.source = source
        self._tokens = [_Token(match[0], match.start()) for match in re.finditer(pattern, source.text)]
        self._next = 0

    @property
    def token(self) -> _Token:
        """The current token, an empty one at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else _Token("", len(self.source.text))

    def take(self) -> _Token:
        """Return the current token and step over it."""
        token = self.token
        self._next += 1
        return token

    def accept(self, *texts: str) -> bool:
        """Step over the current token if it is one of ``texts``, case aside."""
        found = self.token.text.lower() in texts
        self._next += found
        return found

    def expect(self, text: str, after: str) -> None:
        """Step over ``text`` or raise BadInput."""
        if not self.accept(text):
            raise self.source.error(self.token, f"{after} needs {text!r} here")

    def degree(self, name: str) -> int:
        """Step over a degree: a positive integer of at most a million."""
        token = self.take()
        if not re.fullmatch("[0-9]+", token.text) or not token.text.strip("0"):
            raise self.source.error(token, f"the degree of {name} must be a positive integer")
        if len(token.text.lstrip("0")) > 7 or int(token.text) > LARGEST_DEGREE:
            raise self.source.error(token, f"the degree of {name} must be at most {LARGEST_DEGREE}")
        return int(token.text)


def parse_strategy(text: str, *, moe: bool = True, flag: str = "--strategy") -> Strategy:
    """Return the strategy that ``text`` writes in MixServe's notation (section III-B1).

    ``TP=4 + DP=8, EP=32`` is attention before the comma and experts after it; one block without a
    comma stands for both, its DP (or EP) being DP of attention and EP of experts. ``SP=n`` is
    staged attention, ``DP=160 x 3, EP=288`` three attention domains, ``[PP=n]`` at the end
    pipeline stages. Spaces and case are free and what is not written is 1. With ``moe=False``
    the experts' degrees mirror those of attention.

    Raises BadInput, with the position, for what the grammar refuses, and with both sums where
    attention and experts that share devices differ in their number.
    """
    cursor = _Cursor(_Text(text, flag))
    if not cursor.token.text:
        raise BadInput(f"{flag}: the strategy is empty; write for example 'TP=4 + DP=8, EP=32' or 'TP=8 [PP=4]'")
    lone = "," not in text
    attention = _block(cursor, "both" if lone else "attention")
    domains = 0
    if cursor.token.text.lower() in ("x", TIMES):
        times = cursor.take()
        if not moe:
            raise cursor.source.error(times, "domains set attention apart from experts, which the model has none of")
        if lone:
            raise cursor.source.error(times, "domains set attention apart, so experts must stand after a comma")
        domains = cursor.degree("x (domains)")
    experts = _mirrored(cursor, attention, moe) if lone else _experts(cursor)
    pp = _pipeline(cursor)
    if cursor.token.text:
        raise cursor.source.error(cursor.token, "expected '+', ',', '[PP=n]' or the end")
    staged = attention.get("SP", 1) > 1
    strategy = Strategy(
        attention_tp=attention.get("SP", attention.get("TP", 1)),
        attention_dp=attention.get("DP", attention.get("EP", 1)),
        staged=staged,
        moe_tp=experts.get("TP", 1),
        moe_ep=experts.get("EP", experts.get("DP", 1)),
        pp=pp,
        domains=domains,
    )
    _check_devices(strategy, cursor.source, moe)
    return strategy


def _block(cursor: _Cursor, kind: BlockKind) -> dict[str, int]:
    """Read ``name=degree`` joined by ``+``, refusing what does not go together in ``kind``."""
    found: dict[str, int] = {}
    while True:
        token = cursor.take()
        name = token.text.upper()
        source = cursor.source
        whose = "attention and experts" if kind == "both" else kind
        if name == "PP":
            raise source.error(token, "pipeline stages stand at the end, as [PP=n]")
        if name == "EP" and kind == "attention":
            raise source.error(token, "attention has no EP; use DP before the comma and EP after it")
        if name not in ACCEPTED[kind]:
            raise source.error(token, f"expected a parallelism of {whose}: {', '.join(ACCEPTED[kind])}")
        if name in found:
            raise source.error(token, f"{name} is given twice; give it once")
        for one, other in (("DP", "EP"), ("TP", "SP")):
            if {name, *found} >= {one, other}:
                raise source.error(token, f"{one} and {other} of one block are the same devices; give one of them")
        cursor.expect("=", name)
        found[name] = cursor.degree(name)
        if not cursor.accept("+"):
            return found


def _experts(cursor: _Cursor) -> dict[str, int]:
    cursor.expect(",", "attention")
    return _block(cursor, "experts")


def _mirrored(cursor: _Cursor, attention: dict[str, int], moe: bool) -> dict[str, int]:
    """Return the experts' degrees where one block stands for both."""
    if moe and attention.get("SP", 1) > 1:
        example = attention["SP"] * attention.get("DP", attention.get("EP", 1))
        raise cursor.source.error(
            cursor.token,
            f"SP is a parallelism of attention alone; name the experts' after a comma, such as EP={example}",
        )
    return {"TP": attention.get("SP", attention.get("TP", 1)), "EP": attention.get("DP", attention.get("EP", 1))}


def _pipeline(cursor: _Cursor) -> int:
    if not cursor.accept("["):
        return 1
    if not cursor.accept("pp"):
        raise cursor.source.error(cursor.token, "only PP stands in brackets, as [PP=n]")
    cursor.expect("=", "PP")
    stages = cursor.degree("PP")
    cursor.expect("]", "[PP=n")
    return stages


def _check_devices(strategy: Strategy, source: _Text, moe: bool) -> None:
    """Raise BadInput unless attention and experts of one stage agree on their devices."""
    attention, experts = strategy.attention_devices, strategy.expert_devices
    if not moe and (strategy.moe_tp, strategy.moe_ep) != (strategy.attention_tp, strategy.attention_dp):
        raise BadInput(
            f"{source.flag}: {source.quoted} gives experts of their own to a model without any; "
            f"use {format_block(strategy, 'attention')!r}"
        )
    if not strategy.disaggregated and attention != experts:
        fits = attention % strategy.moe_tp == 0
        right = _join(("TP", strategy.moe_tp), ("EP", attention // strategy.moe_tp)) if fits else f"EP={attention}"
        raise BadInput(
            f"{source.flag}: {source.quoted} spreads attention over {strategy.attention_tp} * "
            f"{strategy.attention_dp} = {attention} devices and experts over {strategy.moe_tp} * "
            f"{strategy.moe_ep} = {experts}; both share their devices, so use {right} after the comma"
        )
    if strategy.devices > LARGEST_DEGREE:
        raise BadInput(f"{source.flag}: {source.quoted} needs {strategy.devices} devices; use at most {LARGEST_DEGREE}")


def _join(*parallels: tuple[str, int]) -> str:
    """Print the parallels above 1, ``TP=1`` where there are none."""
    return " + ".join(f"{name}={degree}" for name, degree in parallels if degree > 1) or "TP=1"


def format_block(strategy: Strategy, kind: Literal["attention", "experts"]) -> str:
    """Print one side of a strategy, without its pipeline: ``SP=4 + DP=8`` or ``EP=32``."""
    if kind == "experts":
        return _join(("TP", strategy.moe_tp), ("EP", strategy.moe_ep))
    block = _join(("SP" if strategy.staged else "TP", strategy.attention_tp), ("DP", strategy.attention_dp))
    return f"{block} x {strategy.domains}" if strategy.disaggregated else block


def format_strategy(strategy: Strategy, *, moe: bool = True) -> str:
    """Print a strategy so that ``parse_strategy`` reads it back; one block where both would read the same.

    Of a dense model (``moe=False``) that is always so.

    >>> format_strategy(Strategy(attention_tp=4, attention_dp=8, moe_ep=32))
    'TP=4 + DP=8, EP=32'
    """
    attention, experts = format_block(strategy, "attention"), format_block(strategy, "experts")
    text = attention if attention == experts or not moe else f"{attention}, {experts}"
    return f"{text} [PP={strategy.pp}]" if strategy.pp > 1 else text


def check_strategy(strategy: Strategy, spec: ModelSpec, flag: str = "--strategy") -> None:
    """Raise BadInput where ``spec`` cannot be cut as ``strategy`` says, naming the flag and what would be right.

    Whether the expert slots divide over the EP ranks depends on the redundancy and is not asked here.
    """
    message = next(model_conflicts(strategy, spec), None)
    if message:
        raise BadInput(
            f"{flag}: {format_strategy(strategy, moe=spec.moe is not None)!r} does not fit {spec.name}: {message}"
        )


def model_conflicts(strategy: Strategy, spec: ModelSpec) -> Iterator[str]:
    """Yield what of ``strategy`` the dimensions of ``spec`` rule out, and what would be right."""
    tp, attention = strategy.attention_tp, spec.attention
    name = "SP" if strategy.staged else "attention TP"
    if strategy.staged and attention.kind != "mla":
        yield "SP (staged prefill attention) is for latent attention (MLA); use TP"
    elif strategy.staged and attention.kind == "mla" and attention.indexer:
        yield "SP (staged prefill attention) expands keys of the whole context, which sparse attention does not; use TP"
    if spec.linear_attention and spec.linear_attention.key_heads % tp:
        heads = spec.linear_attention.key_heads
        yield f"its {heads} key heads of linear attention do not divide by {name}={tp}; use {_near(heads, tp)}"
    if attention.heads % tp:
        yield f"its {attention.heads} heads do not divide by {name}={tp}; use {_near(attention.heads, tp)}"
    elif attention.kind == "gqa" and attention.kv_heads % tp and tp % attention.kv_heads:
        use = _near(attention.heads, tp, lambda n: not (attention.kv_heads % n and n % attention.kv_heads))
        yield f"its {attention.kv_heads} KV heads neither divide nor are divided by {name}={tp}; use {use}"
    groups = attention.compression.output_groups if attention.kind == "mla" and attention.compression else tp
    if groups % tp:
        yield f"its {groups} groups of attention outputs do not divide by {name}={tp}; use {_near(groups, tp)}"
    width = spec.dense_intermediate_size if spec.dense_layers and not strategy.staged else None
    if width and width % tp:
        yield f"its dense feed-forward width {width} does not divide by {name}={tp}; use {_near(width, tp)}"
    yield from _expert_conflicts(strategy, spec)
    if strategy.pp > spec.layers:
        yield f"PP={strategy.pp} exceeds its {spec.layers} layers; use at most PP={spec.layers}"
    if strategy.disaggregated and strategy.pp > 1:
        yield f"domains already pipeline the layers, so PP={strategy.pp} cannot be added; use PP=1"


def _near(width: int, degree: int, allowed: Callable[[int], bool] = lambda n: True) -> str:
    """Name the allowed divisors of ``width`` next below and above ``degree``."""
    divisors = [n for n in range(1, width + 1) if width % n == 0 and allowed(n)]
    below, above = [n for n in divisors if n < degree][-1:], [n for n in divisors if n > degree][:1]
    return " or ".join(str(n) for n in below + above)


def _expert_conflicts(strategy: Strategy, spec: ModelSpec) -> Iterator[str]:
    tp, moe = strategy.moe_tp, spec.moe
    if moe is None:
        if strategy.disaggregated or (tp, strategy.moe_ep) != (strategy.attention_tp, strategy.attention_dp):
            yield f"it has no experts; use {_join(('TP', strategy.attention_tp), ('DP', strategy.attention_dp))!r}"
        return
    widths = [("expert", moe.intermediate_size)]
    if moe.shared_experts and strategy.moe_ep == 1:
        widths.append(("shared expert", moe.shared_intermediate_size))
    for what, width in widths:
        if width % tp:
            yield f"its {what} width {width} does not divide by expert TP={tp}; use {_near(width, tp)}"
