"""Back ends: HiGHS, CP-SAT and Pyomo behind one `Solution`, in a thread or a child process."""
