"""One step of a cluster whose workers wait for each other."""
