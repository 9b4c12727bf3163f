"""Policies side by side: in steps, in seconds, on a cluster."""

from optsched.comparison.base import Comparison
from optsched.comparison.cluster import ClusterComparison
from optsched.comparison.dispatch import compare
from optsched.comparison.seconds import ClockComparison
from optsched.comparison.steps import StepComparison

__all__ = ["ClockComparison", "ClusterComparison", "Comparison", "StepComparison", "compare"]
