"""Certificates of lower bounds, and verifiers in exact integers that share no code with them."""
