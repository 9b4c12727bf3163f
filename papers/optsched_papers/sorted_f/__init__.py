"""Targets of "LLM Serving Optimization with Variable Prefill and Decode Lengths" (Sorted-F)."""
