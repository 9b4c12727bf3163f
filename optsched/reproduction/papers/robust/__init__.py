"""Targets of "Adaptively Robust LLM Inference Optimization under Prediction Uncertainty"."""

from optsched.reproduction.papers.robust import experiments, formulas, theorems

TARGETS = (*formulas.TARGETS, *theorems.TARGETS, *experiments.TARGETS)
