"""Kernels that assign the waiting requests of one step, callable from compiled code."""

from optsched.solvers.balance.deficit_kernels import assign_by_deficit as assign_by_deficit
from optsched.solvers.balance.deficit_kernels import search_deficit as search_deficit
from optsched.solvers.balance.greedy_kernels import UNLIMITED as UNLIMITED
from optsched.solvers.balance.swap_kernels import assign as assign
from optsched.solvers.balance.swap_kernels import assign_by_greedy as assign_by_greedy
from optsched.solvers.balance.swap_kernels import assign_by_swap as assign_by_swap
from optsched.solvers.balance.swap_kernels import assign_profiles as assign_profiles
