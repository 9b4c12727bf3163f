"""Policies side by side: in steps, in seconds, on a cluster."""

from optsched.comparison.cluster import ClusterComparison
from optsched.comparison.comparing import compare, compare_lookaheads
from optsched.comparison.replications import Replications
from optsched.comparison.result import Comparison

__all__ = ["ClusterComparison", "Comparison", "Replications", "compare", "compare_lookaheads"]
