"""Solvers: bounds, searches and exact methods. None of them knows a paper's model."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
