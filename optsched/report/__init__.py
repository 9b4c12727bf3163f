"""Tables, plots and pages: what a person looks at. Loaded when it is first used."""

from optsched._internal.rooms import attach

__getattr__, __dir__ = attach(__name__, __file__, "report")
