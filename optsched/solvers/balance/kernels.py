"""Kernels that assign the waiting requests of one step, callable from compiled code."""

from optsched.solvers.balance.greedy_kernels import UNLIMITED as UNLIMITED
from optsched.solvers.balance.swap_kernels import assign as assign
from optsched.solvers.balance.swap_kernels import assign_profiles as assign_profiles
