"""Policies that are a fixed priority of each request."""

from __future__ import annotations

from optsched.policies.base import PriorityPolicy

PRIORITIES = (
    PriorityPolicy(
        "fcfs",
        "first come, first served",
        lambda instance: instance.arrivals,
        source="the order of arrival",
    ),
    PriorityPolicy(
        "mc-sf",
        "shortest output first",
        lambda instance: instance.outputs,
        source="Jaillet Alg. 1",
    ),
    PriorityPolicy(
        "mc-sf-total",
        "smallest prompt + output first",
        lambda instance: instance.peaks,
        source="Sorted-F Section 2.1",
    ),
    PriorityPolicy(
        "area",
        "smallest memory-time first",
        lambda instance: instance.areas,
        source="Smith's rule for the relaxation behind the closed-form bound",
    ),
)
