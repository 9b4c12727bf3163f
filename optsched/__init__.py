"""Optimisation models for scheduling LLM inference.

The public names are listed once, in `__init__.pyi`, and load when they are first used: importing
optsched imports neither a solver nor a plotting library.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
