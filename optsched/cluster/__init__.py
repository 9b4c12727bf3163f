"""A cluster whose workers wait for the slowest at every step: facts, routing, results."""

from optsched.cluster.drift import Profiles
from optsched.cluster.facts import Cluster, PowerLaw
from optsched.cluster.results import ClusterRun
from optsched.cluster.routing import (
    ROUTINGS,
    BalanceRouting,
    ClusterState,
    NoInformation,
    Oracle,
    Predictor,
    PythonRouting,
    RoutingRule,
    get_routing,
)

__all__ = [
    "ROUTINGS",
    "BalanceRouting",
    "Cluster",
    "ClusterRun",
    "ClusterState",
    "NoInformation",
    "Oracle",
    "PowerLaw",
    "Predictor",
    "Profiles",
    "PythonRouting",
    "RoutingRule",
    "get_routing",
]
