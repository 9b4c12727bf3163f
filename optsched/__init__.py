"""Optimisation models for scheduling LLM inference.

The public names are listed once, in `__init__.pyi`, and load when they are first used: importing
optsched imports neither a solver nor a plotting library. Everything else is in its room, such as
`optsched.models` or `optsched.simulate.cluster`.
"""

import difflib as _difflib
import importlib as _importlib
from importlib import util as _util

import lazy_loader as _lazy_loader

from optsched import rolling as _rolling  # noqa: F401  adds to the rooms below it
from optsched import serving as _serving  # noqa: F401

_load, __dir__, __all__ = _lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """Load a public name or a room; at any other name say which one may be meant."""
    if name in __all__:
        return _load(name)
    if not name.startswith("_"):
        if _util.find_spec(f"{__name__}.{name}") is not None:
            return _importlib.import_module(f"{__name__}.{name}")
        if near := _difflib.get_close_matches(name, __all__, n=1):
            raise AttributeError(f"optsched has no {name!r}: did you mean {near[0]!r}?")
    raise AttributeError(f"optsched has no {name!r}; dir(optsched) lists its names")
