"""Policies that are a fixed priority of each request."""

from __future__ import annotations

from operator import attrgetter

from optsched.policies.base import PriorityPolicy

_SMITH = "Smith's rule for the relaxation behind the closed-form bound"

PRIORITIES = tuple(
    PriorityPolicy(name, description, attrgetter(key), source=source)
    for name, description, key, source in (
        ("fcfs", "first come, first served", "arrivals", "the order of arrival"),
        ("mc-sf", "shortest output first", "outputs", "Jaillet Alg. 1"),
        ("mc-sf-total", "smallest prompt + output first", "peaks", "Sorted-F Section 2.1"),
        ("area", "smallest memory-time first", "areas", _SMITH),
    )
)
