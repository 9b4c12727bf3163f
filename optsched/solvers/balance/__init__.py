"""BF-IO's step program: greedy and swap kernels, HiGHS and CP-SAT."""
