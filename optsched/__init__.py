"""Optimisation models for scheduling LLM inference.

The public names are listed once, in `__init__.pyi`, and load when they are first used: importing
optsched imports neither a solver nor a plotting library. Everything else is in its room, such as
`optsched.models` or `optsched.simulate.cluster`.
"""

from optsched import rolling as _rolling  # noqa: F401  adds to the rooms below it
from optsched._internal.rooms import attach as _attach

__getattr__, __dir__ = _attach(__name__, __file__, "public")
