"""Cases of what other distributions bring, which are tried where these are installed."""

from importlib.metadata import entry_points

_COMMANDS = entry_points(group="optsched.commands").names

#: Whether there are the engine `vllm`, capacity, and clocks of measured runs.
SERVING = "capacity" in _COMMANDS
PAPERS = "reproduce" in _COMMANDS

#: The engine of tests that need any: with serving, the one that has most to go wrong.
ENGINE = "vllm" if SERVING else "vllm-v0"


def with_serving(*cases):
    """Return cases that need serving, or none where it is not installed."""
    return cases if SERVING else ()


def with_papers(*cases):
    """Return cases that need the papers, or none where they are not installed."""
    return cases if PAPERS else ()
