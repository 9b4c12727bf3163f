"""The papers' tables, figures and theorems, regenerated and compared with the printed ones."""

from optsched._internal.rooms import attach

__getattr__, __dir__ = attach(__name__, __file__)
