"""Policies: what is admitted first. None of them knows the simulator that runs it."""

from optsched._internal.rooms import attach

__getattr__, __dir__ = attach(__name__, __file__, "policy class")
