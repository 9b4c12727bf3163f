"""Regret of online policies against the hindsight optimum, as an interval that is proven."""

from optsched.regrets.driver import regret
from optsched.regrets.growth import Growth, growth_of
from optsched.regrets.result import Regret
from optsched.regrets.threshold import OverloadThreshold, overload_threshold

__all__ = [
    "Growth",
    "OverloadThreshold",
    "Regret",
    "growth_of",
    "overload_threshold",
    "regret",
]
