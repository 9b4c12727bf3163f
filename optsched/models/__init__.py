"""Models: decision problems and the arrays they become. None of them imports a solver."""

from optsched._internal.rooms import attach

__getattr__, __dir__ = attach(__name__, __file__)
