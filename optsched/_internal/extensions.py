"""What a room adds to rooms below it, which never import it: named here, loaded when asked for.

A room says in its `__init__` what it adds; `optsched/__init__.py` lists the rooms that do.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
