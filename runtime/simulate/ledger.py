"""What happened to every request."""

from collections.abc import Callable

import numpy as np

from runtime.simulate.workload import Requests


class Ledger:
    """Times per request; not a number where the event has not happened."""

    __slots__ = (
        "arrival",
        "completion",
        "failed",
        "first_token",
        "inputs",
        "on_leave",
        "outputs",
        "requests",
        "reused",
    )

    def __init__(self, requests: Requests) -> None:
        count = len(requests)
        self.requests = requests
        # Plain lists: the event loop reads single elements, which arrays do slowly.
        self.inputs: list[int] = requests.input_tokens.tolist()
        self.outputs: list[int] = requests.output_tokens.tolist()
        self.reused: list[int] = requests.reused_tokens.tolist()
        self.arrival = np.full(count, np.nan)
        self.first_token = np.full(count, np.nan)
        self.completion = np.full(count, np.nan)
        self.failed = np.zeros(count, dtype=bool)
        self.on_leave: Callable[[], None] | None = None

    def complete(self, request: int, seconds: float) -> None:
        """Note that the last token of ``request`` is out."""
        self.completion[request] = seconds
        if self.on_leave:
            self.on_leave()

    def fail(self, request: int) -> None:
        """Note that ``request`` can never be served."""
        self.failed[request] = True
        if self.on_leave:
            self.on_leave()
