"""BF-IO's step program: greedy, swap and certified deficit kernels, HiGHS and CP-SAT."""
