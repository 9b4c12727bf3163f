"""Targets of "A Universal Load Balancing Principle and Its Application to LLM Serving" (BF-IO)."""

from __future__ import annotations

from optsched.papers.bf_io.figures import TARGETS as FIGURES
from optsched.papers.bf_io.metrics import TARGETS as METRICS
from optsched.papers.bf_io.theorems import TARGETS as THEOREMS

TARGETS = (*METRICS, *FIGURES, *THEOREMS)
