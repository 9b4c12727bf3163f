"""Targets of "Adaptively Robust LLM Inference Optimization under Prediction Uncertainty"."""
