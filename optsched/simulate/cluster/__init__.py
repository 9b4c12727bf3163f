"""A cluster whose workers wait for the slowest at every step: facts, routing, results."""

from optsched.problem.workers import Cluster, PowerLaw
from optsched.simulate.cluster.balance_route import BalanceRoute
from optsched.simulate.cluster.results import ClusterRun, Profiles
from optsched.simulate.cluster.routing import (
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
    "BalanceRoute",
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
