"""Which kernels a first call needs: each takes a tenth of a second and more to compile."""

import os

import pytest
from fresh import forked, warm

pytestmark = pytest.mark.slow

LOADED = """
import gc
import optsched
from numba.core.dispatcher import Dispatcher

def loaded():
    kernels = [each for each in gc.get_objects() if issubclass(type(each), Dispatcher)]
    return {each.py_func.__module__ for each in kernels if each.signatures}
"""


def test_a_few_requests_are_solved_without_kernels_of_searches():
    """It had been 50 kernels, which took 35 seconds of the first `solve`."""
    code = f"""{LOADED}
rooms = ("bounds", "search", "solvers")
for options in ({{}}, {{"rate": 0.5}}):
    instance = optsched.family("uniform", n=6, seed=1, **options)
    print(optsched.solve(instance, time_limit=None).proof)
    print(*(name for name in loaded() if name.split(".")[1] in rooms))
"""
    offline, first, online, then = warm(code).splitlines()
    assert offline == online == "branch and bound"
    known = {"optsched.bounds.lagrangian"}
    assert set(first.split()) == set(then.split()) == known


def test_ten_requests_are_proven_without_kernels_of_searches():
    """It had been 60 kernels, which took 20 CPU seconds of the first `solve`."""
    code = f"""{LOADED}
for options in ({{}}, {{"load": 1.1}}, {{"objective": "makespan"}}):
    objective = options.pop("objective", "total-latency")
    instance = optsched.family("uniform", n=10, seed=1, **options)
    print(optsched.solve(instance, objective=objective, time_limit=None).status)
print(*(name for name in loaded() if name.split(".")[1] in ("bounds", "search", "solvers")))
"""
    *statuses, names = warm(code).splitlines()
    assert statuses == ["optimal"] * 3
    assert set(names.split()) <= {"optsched.bounds.lagrangian", "optsched.search.exact.states"}


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.long)])
def test_policies_compile_their_own_kernels_only(cold, tmp_path):
    """A comparison in steps needs none of the clock's, and fcfs on a cluster none of bf-io's."""
    code = f"""{LOADED}
instance = optsched.family("chat-and-summaries", n=30, rate=20)
optsched.run(instance, "fcfs", cluster=optsched.Cluster(workers=2, slots=4))
print(*loaded())
optsched.compare(instance)
print(*loaded())
"""
    # Of kernels that are kept on disk only those that Python calls are loaded.
    environment = os.environ | ({"NUMBA_CACHE_DIR": str(tmp_path)} if cold else {})
    shown, _ = forked(code, tmp_path, environment)
    cluster, both = (set(line.split()) for line in shown.splitlines())
    own = {"optsched.simulate.cluster.kernels", "optsched._internal.small_kernels"}
    found = {name for name in cluster if name.startswith("optsched")}
    assert found == own if cold else found <= own
    steps = {name for name in both - cluster if name.startswith("optsched.")}
    assert "optsched.admission" in steps
    assert not any(name.startswith("optsched.simulate.seconds") for name in steps)
    assert not any(name.startswith("optsched.search") for name in steps)
