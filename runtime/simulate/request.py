"""One request on its way through the system."""

from collections.abc import Sequence

# Where a request is. It leaves the system COMPLETED or FAILED; everything else counts as running.
ARRIVED, PREFILL, TRANSFER, DECODE, COMPLETED, FAILED = range(6)


class Request:
    """Lengths, times and what the parts of the system note about it.

    ``prompt`` tokens are to be prefilled: the input, and after a loss of KV the answer so far behind it; ``reused`` of
    them are found in the cache. ``left`` tokens are to be decoded after the one that prefill gives.
    """

    __slots__ = (
        "arrival",
        "begun",
        "blocks",
        "epoch",
        "first_token",
        "hold",
        "inputs",
        "left",
        "need",
        "number",
        "offline",
        "outputs",
        "place",
        "prompt",
        "record",
        "retries",
        "reused",
        "session",
        "started",
        "state",
    )

    def __init__(self, number: int, arrival: float, inputs: int, outputs: int, reused: int) -> None:
        self.number, self.arrival, self.inputs, self.outputs, self.reused = number, arrival, inputs, outputs, reused
        self.prompt, self.left = inputs, outputs - 1
        self.begun = 0
        self.blocks: Sequence[int] | None = None
        self.offline = False
        self.session = -1
        self.state = ARRIVED
        self.started = self.first_token = -1.0
        self.retries = 0
        self.place = -1  # the decode rank that it holds
        self.need = 0  # tokens set aside there
        self.hold = 0  # tokens held at prefill until they are pulled
        self.epoch = self.record = 0

    def recompute(self, generated: int) -> None:
        """Turn back to a prompt: KV is lost after the first token and ``generated`` more; prefill gives the next."""
        self.prompt += generated + 1
        self.left -= generated + 1
        self._again()

    def migrate(self, generated: int) -> None:
        """Look for another place in decode: ``generated`` tokens are out and their KV is kept."""
        self.prompt += generated
        self.left -= generated
        self._again()

    def retry(self) -> None:
        """Begin prefill anew: its KV is lost before the prompt gave a token."""
        self._again()

    def _again(self) -> None:
        self.reused = 0
        self.state = ARRIVED
        self.epoch += 1
        self.retries += 1
