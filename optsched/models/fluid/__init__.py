"""The fluid model: equilibrium, WAIT, Nested WAIT and its segments."""
