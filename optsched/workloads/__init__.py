"""Where instances come from: traces in files, and families of random or adversarial requests."""

from optsched.workloads.families import FAMILIES, WorkloadFamily, family
from optsched.workloads.poisson import poisson_requests
from optsched.workloads.readers import read_trace, read_trace_skipping
from optsched.workloads.reductions import Reduction, partition, three_partition
from optsched.workloads.trace import SkippedRow

__all__ = [
    "FAMILIES",
    "Reduction",
    "SkippedRow",
    "WorkloadFamily",
    "family",
    "partition",
    "poisson_requests",
    "read_trace",
    "read_trace_skipping",
    "three_partition",
]
