"""Solvers: bounds, searches and exact methods. None of them knows a paper's model."""
