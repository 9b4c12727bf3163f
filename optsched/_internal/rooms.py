"""What rooms add to those below them: named by text, and imported when it is needed."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import lazy_loader

if TYPE_CHECKING:
    from collections.abc import Callable


_added: dict[str, dict[str, str]] = {}


def extend(kind: str, **places: str) -> None:
    """Add names of a kind, each with its place, "module:name"."""
    _added.setdefault(kind, {}).update(places)


def names(kind: str) -> list[str]:
    """Return the names that were added."""
    return list(_added.get(kind, {}))


def every(kind: str) -> list[Any]:
    """Return all that was added of a kind."""
    return [added(kind, name) for name in names(kind)]


def added(kind: str, name: str) -> Any:
    """Return what was added under a name."""
    module, _, attribute = _added[kind][name].partition(":")
    return getattr(import_module(module), attribute)


def attach(
    package: str, file: str, kind: str
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__`, `__all__` of a room: its names, and what rooms above add."""
    load, _, own = lazy_loader.attach_stub(package, file)

    def find(name: str) -> object:
        return added(kind, name) if name in names(kind) else load(name)

    return find, lambda: sorted([*own, *names(kind)]), own
