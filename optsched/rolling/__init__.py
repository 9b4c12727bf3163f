"""The rolling horizon: windows of waiting requests, what plans them, and who carries plans out."""

from optsched.rolling.window import Window

__all__ = ["Window"]
