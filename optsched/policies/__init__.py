"""Policies: what is admitted first. None of them knows the simulator that runs it."""

import lazy_loader

from optsched._internal.extensions import added, names

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return a name of this room, or one that a room above adds."""
    return added("policy class", name) if name in names("policy class") else _load(name)
