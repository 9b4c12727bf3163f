"""Policies side by side: in steps, in seconds, on a cluster."""
