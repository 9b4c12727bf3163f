"""How many workers a trace needs for its objectives: at least, proven; at most, by simulation."""
