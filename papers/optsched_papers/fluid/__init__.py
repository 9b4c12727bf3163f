"""Targets of "Optimizing LLM Inference: Fluid-Guided Online Scheduling ..." (Fluid)."""
