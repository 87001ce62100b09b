"""One request on its way through the system."""

from collections.abc import Sequence
from dataclasses import dataclass, field

# Where a request is. It leaves the system COMPLETED or FAILED; everything else counts as running.
ARRIVED, PREFILL, TRANSFER, DECODE, COMPLETED, FAILED = range(6)


@dataclass(slots=True, eq=False)
class Request:
    """Lengths, times and what the parts of the system note about it.

    ``prompt`` tokens are to be prefilled: the input, and after a loss of KV the answer so far behind it; ``reused`` of
    them are found in the cache. ``left`` tokens are to be decoded after the one that prefill gives.
    """

    number: int
    arrival: float
    inputs: int
    outputs: int
    reused: int
    prompt: int = field(init=False)
    left: int = field(init=False)
    begun: int = 0
    blocks: Sequence[int] | None = None
    offline: bool = False
    session: int = -1
    state: int = ARRIVED
    started: float = -1.0
    first_token: float = -1.0
    retries: int = 0
    place: int = -1  # the decode rank that it holds
    need: int = 0  # tokens set aside there
    hold: int = 0  # tokens held at prefill until they are pulled
    epoch: int = 0
    record: int = 0

    def __post_init__(self) -> None:
        """All of the input is to be prefilled, and all of the answer but its first token decoded."""
        self.prompt, self.left = self.inputs, self.outputs - 1

    def recompute(self, generated: int) -> None:
        """Turn back to a prompt: KV is lost after the first token and ``generated`` more; prefill gives the next."""
        self.prompt += generated + 1
        self.left -= generated + 1
        self.retry()

    def migrate(self, generated: int) -> None:
        """Look for another place in decode: ``generated`` tokens are out and their KV is kept."""
        self.prompt += generated
        self.left -= generated
        self.retry()

    def retry(self) -> None:
        """Begin anew: with prefill, where its KV is lost before the prompt gave a token."""
        self.reused = 0
        self.state = ARRIVED
        self.epoch += 1
        self.retries += 1
