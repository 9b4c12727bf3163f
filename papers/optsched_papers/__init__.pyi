from .driver import Reproduction as Reproduction
from .driver import get_target as get_target
from .driver import reproduce as reproduce
from .folder import reproduce_into as reproduce_into
from .robust.competitive_ratio import CompetitiveRatio as CompetitiveRatio
from .targets import TARGETS as TARGETS

__all__ = [
    "TARGETS",
    "CompetitiveRatio",
    "Reproduction",
    "get_target",
    "reproduce",
    "reproduce_into",
]
