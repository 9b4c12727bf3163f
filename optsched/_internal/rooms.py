"""What rooms above add to those below them: named by text, and imported when it is needed.

Rooms of other distributions register through the entry point `optsched.rooms`, which is read when a
name is first missing, or all names of a kind are asked for; never by `import optsched`.
"""

from __future__ import annotations

import functools
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_added: dict[str, dict[str, str]] = {}

#: Names that come with a folder of the repository.
_ELSEWHERE = {
    **dict.fromkeys(("reproduce", "competitive-ratio"), "papers"),
    **dict.fromkeys(("capacity", "Slo", "vllm", "VllmPolicy", "clock", "--serve"), "serving"),
    **dict.fromkeys(("slo", "capacity_page", "capacity_table"), "serving"),
    **dict.fromkeys(("plot_attainment", "plot_growth"), "serving"),
}


def elsewhere(name: str) -> str | None:
    """Say what to install for a name of another distribution."""
    if (folder := _ELSEWHERE.get(name)) is None:
        return None
    return (
        f"{name} comes with the folder {folder}/ of the repository; install it from a checkout "
        f"with python -m pip install ./{folder}"
    )


def extend(kind: str, **places: str) -> None:
    """Add names of a kind, each with its place, "module:name"."""
    _added.setdefault(kind, {}).update(places)


@functools.cache
def _enter_others() -> None:
    """Let other distributions add what they have."""
    from importlib.metadata import entry_points

    for room in entry_points(group="optsched.rooms"):
        room.load()


def names(kind: str) -> list[str]:
    """Return the names that were added."""
    _enter_others()
    return list(_added.get(kind, {}))


def every(kind: str) -> list[Any]:
    """Return all that was added of a kind."""
    return [added(kind, name) for name in names(kind)]


def added(kind: str, name: str) -> Any:
    """Return what was added under a name."""
    if name not in _added.get(kind, {}):
        _enter_others()
    module, _, attribute = _added[kind][name].partition(":")
    return getattr(import_module(module), attribute)


def attach(
    package: str, file: str, kind: str | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a room: what its stub lists, and what others add."""

    @functools.cache
    def stub() -> tuple[Callable[[str], Any], list[str]]:
        import lazy_loader  # which is not there, and not needed, beside vLLM

        load, _, listed = lazy_loader.attach_stub(package, file)
        return load, listed

    def listed() -> list[str]:
        return sorted([*stub()[1], *(names(kind) if kind else ())])

    def find(name: str) -> Any:
        load, own = stub()
        if name == "__all__":
            return listed()
        if name in own:
            return load(name)
        if not name.startswith("_"):
            if kind and name in names(kind):
                return added(kind, name)
            if find_spec(f"{package}.{name}") is not None:
                return import_module(f"{package}.{name}")
            if sentence := elsewhere(name):
                raise AttributeError(sentence)
            models = f"{package}.models"
            if find_spec(models) is not None and name in dir(import_module(models)):
                raise AttributeError(f"{package} has no {name!r}: it is in {models}")
            if near := get_close_matches(name, listed(), n=1):
                raise AttributeError(f"{package} has no {name!r}: did you mean {near[0]!r}?")
        raise AttributeError(f"{package} has no {name!r}; dir({package}) lists its names")

    return find, listed
