"""The one tree of errors.

PodplanError
├── BadInput      the question, a flag, a file or a spec is wrong      exit code 2
├── Infeasible    a valid question without a feasible answer           exit code 3
└── Fault         podplan contradicts itself                           exit code 1

A message is one sentence that names the flag, the field or the file and says what would be right.
Only ``cli`` turns these into exit codes; no other room exits or prints.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class PodplanError(Exception):
    """Base of every error that podplan raises on purpose."""


class BadInput(PodplanError):
    """Invalid input of the user, told in one sentence; exit code 2."""


class Infeasible(PodplanError):
    """The question is valid and has no feasible answer: the limit that binds, exit code 3."""


class Fault(PodplanError):
    """Two parts of podplan disagree: a defect here, never the user's, exit code 1."""


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Prefix the message of a BadInput with its source: a flag, a file or a place in it."""
    try:
        yield
    except BadInput as error:
        text = str(error)
        raise BadInput(text if text.startswith(where) else f"{where}: {text}") from None
