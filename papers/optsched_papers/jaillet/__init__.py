"""Targets of "Online Scheduling for LLM Inference with KV Cache Constraints" (Jaillet)."""
