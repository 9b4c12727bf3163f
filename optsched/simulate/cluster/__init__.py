"""Workers that wait for each other."""
