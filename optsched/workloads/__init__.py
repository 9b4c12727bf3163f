"""Where instances come from: traces in files, and families of random or adversarial requests."""

from optsched.problem.request_types import RequestTypes as RequestTypes
from optsched.problem.request_types import poisson_requests as poisson_requests
from optsched.problem.request_types import read_types as read_types
from optsched.workloads.families import FAMILIES as FAMILIES
from optsched.workloads.families import WorkloadFamily as WorkloadFamily
from optsched.workloads.families import family as family
from optsched.workloads.trace import Measured as Measured
from optsched.workloads.trace import SkippedRow as SkippedRow
from optsched.workloads.trace import read_measured as read_measured
from optsched.workloads.trace import read_trace as read_trace
from optsched.workloads.trace import read_trace_skipping as read_trace_skipping
