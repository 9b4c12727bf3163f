"""Branch and bound in time order."""
