"""Targets of "LLM Serving Optimization with Variable Prefill and Decode Lengths" (Sorted-F)."""

from optsched.papers.sorted_f import figure_8, hardness, orders, table_ec_1

TARGETS = (*orders.TARGETS, *hardness.TARGETS, *figure_8.TARGETS, *table_ec_1.TARGETS)
