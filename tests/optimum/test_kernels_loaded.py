"""Which kernels a first call needs: each takes a tenth of a second and more to compile."""

from __future__ import annotations

from fresh import printed

LOADED = """
import gc
from numba.core.dispatcher import Dispatcher

def loaded():
    kernels = [each for each in gc.get_objects() if isinstance(each, Dispatcher)]
    return {each.py_func.__module__ for each in kernels if each.signatures}
"""


def test_a_few_requests_are_solved_without_kernels_of_searches():
    """It had been 50 kernels, which took 35 seconds of the first `solve`."""
    code = f"""{LOADED}
import optsched
for options in ({{}}, {{"rate": 0.5}}):
    instance = optsched.family("uniform", n=6, seed=1, **options)
    print(optsched.solve(instance, time_limit=None).proof)
    print(*(name for name in loaded() if ".solvers." in name))
"""
    offline, first, online, then = printed(code).splitlines()
    assert offline == online == "branch and bound"
    known = {"optsched.solvers.bounds.lagrangian", "optsched.solvers.bounds.relaxation"}
    assert set(first.split()) == set(then.split()) == known
