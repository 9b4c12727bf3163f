"""Runs: what all share, and an `Execution`, every attempt of a run in steps."""

from optsched.problem.execution.attempts import Execution, kept_before, unpreempted
from optsched.problem.execution.base import Loop, Run, Stall, TimedRun, check_log_name, write_log

__all__ = [
    "Execution",
    "Loop",
    "Run",
    "Stall",
    "TimedRun",
    "check_log_name",
    "kept_before",
    "unpreempted",
    "write_log",
]
