"""The command discopatch, also as python -m discopatch."""

import os
import signal


def main() -> None:
    """Runs the command; Ctrl-C also ends it while its modules are imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(128 + number))
    from discopatch import cli

    cli.main()


if __name__ == "__main__":
    main()
