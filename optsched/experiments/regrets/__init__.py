"""Regret of online policies against the hindsight optimum, as an interval that is proven."""

from optsched.experiments.regrets.driver import regret, regret_into
from optsched.experiments.regrets.growth import Growth, growth_of
from optsched.experiments.regrets.result import Regret
from optsched.experiments.regrets.threshold import OverloadThreshold, overload_threshold

__all__ = [
    "Growth",
    "OverloadThreshold",
    "Regret",
    "growth_of",
    "overload_threshold",
    "regret",
    "regret_into",
]
