"""The rolling horizon: windows of waiting requests, what plans them, and what carries plans out."""

from optsched.rolling.decisions import Decisions
from optsched.rolling.window import Window

__all__ = ["Decisions", "Window"]
