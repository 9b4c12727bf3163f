"""Targets of "A Universal Load Balancing Principle and Its Application to LLM Serving" (BF-IO)."""
