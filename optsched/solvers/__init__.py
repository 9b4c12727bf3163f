"""What solves a model: back ends for linear models, and methods for batches and balance."""

from optsched._internal.rooms import attach

__getattr__, __dir__ = attach(__name__, __file__)
