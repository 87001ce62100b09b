"""A rich console that tells of a closed pipe as whatever else writes does; rich itself would end with code 1."""

from rich.console import Console


class PipedConsole(Console):
    """A console whose reader may go away."""

    def on_broken_pipe(self) -> None:
        """Let the error go on to who knows what it means to the shell."""
        raise BrokenPipeError
