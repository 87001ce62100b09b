"""A prefill pass: what each rank of an instance takes in it."""

from dataclasses import dataclass, field

from runtime.simulate.request import Request
from runtime.simulate.steps import RankLoad


@dataclass(slots=True)
class Pass:
    """A pass in the making or under way: room and load of each rank, and the prompts that it ends or carries on."""

    room: list[int]
    tokens: list[int]
    context: list[float]
    pairs: list[float]
    finishing: list[int]
    loading: list[float]
    ended: list[tuple[Request, int]] = field(default_factory=list)
    carried: list[tuple[Request, int, int]] = field(default_factory=list)
    before: list[tuple[Request, int, int]] = field(default_factory=list)
    taken: list[Request] = field(default_factory=list)
    only_offline: bool = False

    @classmethod
    def empty(cls, ranks: int, budget: int) -> "Pass":
        """Return a pass that holds nothing."""
        return cls([budget] * ranks, [0] * ranks, [0.0] * ranks, [0.0] * ranks, [0] * ranks, [0.0] * ranks)

    def has_only_offline(self) -> bool:
        """Whether it carries no online prompt."""
        here = [item[0] for item in self.ended] + [item[0] for item in self.carried]
        return all(request.offline for request in here)

    def loads(self) -> list[RankLoad]:
        """Return the load of every rank that computes something."""
        columns = zip(self.tokens, self.context, self.pairs, self.finishing, strict=True)
        return [RankLoad(0.0, 0.0, float(t), c, p, float(f)) for t, c, p, f in columns if t]
