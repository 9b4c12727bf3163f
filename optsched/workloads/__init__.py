"""Where instances come from: traces in files, and families of random or adversarial requests."""

from optsched.problem.request_types import RequestTypes, poisson_requests, read_types
from optsched.workloads.families import FAMILIES, WorkloadFamily, family
from optsched.workloads.trace import (
    Measured,
    SkippedRow,
    read_measured,
    read_trace,
    read_trace_skipping,
)

__all__ = [
    "FAMILIES",
    "Measured",
    "RequestTypes",
    "SkippedRow",
    "WorkloadFamily",
    "family",
    "poisson_requests",
    "read_measured",
    "read_trace",
    "read_trace_skipping",
    "read_types",
]
