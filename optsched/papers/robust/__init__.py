"""Targets of "Adaptively Robust LLM Inference Optimization under Prediction Uncertainty"."""

from optsched.papers.robust import experiments, formulas, geometric, theorems

TARGETS = (*formulas.TARGETS, *geometric.TARGETS, *theorems.TARGETS, *experiments.TARGETS)
