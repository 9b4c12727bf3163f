"""Policies side by side: in steps, in seconds, on a cluster."""

from optsched.experiments.comparison.cluster import ClusterComparison
from optsched.experiments.comparison.comparing import compare, compare_lookaheads
from optsched.experiments.comparison.replications import Replications
from optsched.experiments.comparison.result import Comparison

__all__ = ["ClusterComparison", "Comparison", "Replications", "compare", "compare_lookaheads"]
