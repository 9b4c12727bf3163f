"""The command line, as `optsched` and as `python -m optsched`: Ctrl-C is one line at any time."""

import gc
import os
import signal


def main() -> None:
    """Run the command line; what is imported before it listens ends at Ctrl-C, too."""
    usual = signal.default_int_handler
    heard = signal.getsignal(signal.SIGINT) is usual  # not in the background of a shell
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from optsched import cli
    from optsched._internal.aside import raise_soon

    try:
        cli.main(lambda: signal.signal(signal.SIGINT, raise_soon) if heard else None)
    finally:
        if heard:  # all is said
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.freeze()  # else Python ends by searching what numba made for garbage, for a second


def _leave(*_: object) -> None:
    os.write(2, b"optsched: interrupted\n")
    os._exit(130)


if __name__ == "__main__":
    main()
