"""The process of the `plan` command: interrupts from before the first import to the end, streams, memory."""

from cli.interrupts import NUMBER, interrupt, leave, let, pass_on

LEAST_WIDTH, MOST_WIDTH = 10, 10_000


def run() -> None:
    """Entry point of the console script."""
    let(leave)
    import gc
    import os
    import sys
    from io import TextIOWrapper

    from cli.main import main
    from ground.units import read_index
    from ground.workers import spare_threads

    spare_threads()
    gc.set_threshold(500_000, 50, 50)  # imports and rows are objects that stay: to look through 100,000 costs 30 ms
    # Let a closed stream lead nowhere, lest files take its number; a width that is none says nothing
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))
    for name in ("COLUMNS", "LINES"):
        if not LEAST_WIDTH <= (read_index(os.environ.get(name, "")) or 0) <= MOST_WIDTH:
            os.environ.pop(name, None)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a table in a terminal without UTF-8 is no reason to fail
    sys.unraisablehook = pass_on
    try:
        let(interrupt)
        code = main(sys.argv[1:])
        let(leave)
    except KeyboardInterrupt:  # while something was told
        code = 128 + NUMBER
    gc.freeze()  # at exit Python looks for cycles among all that was made: 0.1 s
    sys.exit(code)


if __name__ == "__main__":
    run()
