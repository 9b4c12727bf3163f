"""Targets of "Optimizing LLM Inference: Fluid-Guided Online Scheduling ..." (Fluid)."""

from __future__ import annotations

from optsched.papers.fluid import memory, serving, theory

TARGETS = (*serving.TARGETS, *memory.TARGETS, *theory.TARGETS)
