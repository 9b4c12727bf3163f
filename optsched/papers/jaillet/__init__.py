"""Targets of "Online Scheduling for LLM Inference with KV Cache Constraints" (Jaillet)."""

from __future__ import annotations

from optsched.papers.jaillet import adversary, latency, optimality, overflow

TARGETS = (*latency.TARGETS, *overflow.TARGETS, *optimality.TARGETS, *adversary.TARGETS)
