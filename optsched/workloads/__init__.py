"""Where instances come from: traces in files, and families of random or adversarial requests."""

from optsched.workloads.families import FAMILIES, WorkloadFamily, family
from optsched.workloads.poisson import poisson_requests
from optsched.workloads.readers import read_trace, read_trace_skipping
from optsched.workloads.request_types import RequestTypes, read_types
from optsched.workloads.trace import SkippedRow

__all__ = [
    "FAMILIES",
    "RequestTypes",
    "SkippedRow",
    "WorkloadFamily",
    "family",
    "poisson_requests",
    "read_trace",
    "read_trace_skipping",
    "read_types",
]
