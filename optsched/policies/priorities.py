"""Policies that are a fixed priority of each request."""

from __future__ import annotations

from optsched.policies.base import PriorityPolicy

PRIORITIES = (
    PriorityPolicy("fcfs", "first come, first served", lambda instance: instance.arrivals),
    # Jaillet et al., "Online Scheduling for LLM Inference with KV Cache Constraints", Alg. 1.
    PriorityPolicy("mc-sf", "shortest output first", lambda instance: instance.outputs),
    # MC-SF_2 of Wang et al., "LLM Serving Optimization with Variable Prefill and Decode Lengths".
    PriorityPolicy(
        "mc-sf-total", "smallest prompt + output first", lambda instance: instance.peaks
    ),
    # Smith's rule for the memory-time relaxation behind the closed-form bound (docs/bounds.md).
    PriorityPolicy("area", "smallest memory-time first", lambda instance: instance.areas),
)
