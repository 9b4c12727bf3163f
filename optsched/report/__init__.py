"""Tables, plots and pages: what a person looks at. Loaded when it is first used."""

import lazy_loader

from optsched._internal.extensions import added, names

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Return a name of this room, or one that a room above adds."""
    return added("report", name) if name in names("report") else _load(name)
