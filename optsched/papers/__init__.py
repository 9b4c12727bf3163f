"""The papers' tables, figures and theorems, regenerated and compared with the printed ones."""

from optsched.papers.driver import Reproduction, get_target, reproduce
from optsched.papers.folder import reproduce_into
from optsched.papers.robust.competitive_ratio import CompetitiveRatio
from optsched.papers.targets import TARGETS

__all__ = [
    "TARGETS",
    "CompetitiveRatio",
    "Reproduction",
    "get_target",
    "reproduce",
    "reproduce_into",
]
