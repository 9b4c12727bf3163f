"""Room in memory: what is estimated, what is refused, and that nothing extreme is made first."""

import contextlib
import resource

import numpy as np
import pytest
from installed import ENGINE

import optsched
from optsched import HindsightProgram, Instance, OptschedError, RollingPolicy, Schedule, family
from optsched._internal import arrays
from optsched.models import EventProgram, Family, LinearModel, Rows, Running, Variables
from optsched.solvers.backends.files import write_model

GIB = 2**30


@contextlib.contextmanager
def address_space(more):
    """Let this process take so many bytes more, whatever the machine has."""
    with open("/proc/self/statm", encoding="ascii") as file:
        held = int(file.read().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_the_limit_of_the_process_counts():
    free = arrays.available_memory()
    assert 0 < free <= 2**50
    with address_space(GIB):
        assert 0 < arrays.available_memory() <= GIB


def test_a_group_of_processes_has_a_limit_too(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "_GROUPS", tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    free = arrays.available_memory()
    (tmp_path / "memory.max").write_text(f"{2**40}\n")
    assert arrays.available_memory() == pytest.approx(free, rel=0.1)
    (tmp_path / "memory.max").write_text("4096\n")  # less than is held already
    assert arrays.available_memory() == 0


def test_a_refusal_says_what_fits_and_that_fits(monkeypatch):
    monkeypatch.setattr(arrays, "available_memory", lambda: 2 * GIB)
    with pytest.raises(
        OptschedError, match=r"^8,589,934,592 lists would take 8 GiB .*1,073,741,824; cut"
    ):
        arrays.require_room(2**33, 1, "lists", "cut")
    arrays.require_room(GIB, 1, "lists", "cut")
    assert not arrays.has_room(GIB + 1, 1)


LONG = Instance([1, 1, 1], [10**9 - 1, 10**9 - 1, 5], memory=10**9)
FAR = Instance([6] * 8, [4] * 8, 30, [0, 0, 0, 0] + [10**12 - 9] * 4)
STEPS = family("uniform", n=20, seed=1, rate=1.0, seconds_per_step=1e7)
BELIEVED = Instance([1] * 3, [5] * 3, memory=10**9)
CLOCK = "llama-2-7b-a100"

EXTREMES = {
    "n of a family": lambda: family("uniform", n=10**9),
    "memory of a family": lambda: family("sorted-f-example-1", memory=10**9),
    "rows of a family": lambda: family("robust-two-point", memory=10**9),
    "rate of a family": lambda: family("equal-prompts", n=1000, rate=1e-12),
    "outputs in steps": lambda: optsched.run(LONG, "area+window"),
    "outputs on a clock": lambda: optsched.run(
        LONG.replace(seconds_per_step=1.0), ENGINE, clock=CLOCK
    ),
    "outputs on workers": lambda: optsched.run(LONG, "area", workers=2),
    "outputs in a window": lambda: optsched.run(
        Instance([1] * 9, [10**9 - 1] * 9, 10**9), RollingPolicy(window=9)
    ),
    "outputs of an optimum": lambda: optsched.solve(LONG, time_limit=2),
    "outputs of a joint optimum": lambda: optsched.solve(
        Instance([1] * 3, [4 * 10**8] * 3, 4 * 10**8 + 1), time_limit=2, workers=2
    ),
    "outputs in conflict": lambda: optsched.explain_infeasibility(
        LONG.replace(deadlines=[10**9, 10**9, 5])
    ),
    "arrivals of an optimum": lambda: optsched.solve(FAR, time_limit=2),
    "arrivals of a joint optimum": lambda: optsched.solve(
        FAR, time_limit=2, workers=2, objective="makespan"
    ),
    "arrivals in conflict": lambda: optsched.explain_infeasibility(
        FAR.replace(deadlines=[5] + [10**12] * 7)
    ),
    "arrivals of a bound": lambda: optsched.bound(FAR, "lagrangian"),
    "starts in events": lambda: EventProgram(FAR, workers=2),
    "steps of a clock": lambda: optsched.bound(STEPS, "lagrangian", clock=CLOCK),
    "steps of a schedule": lambda: Schedule(LONG, [0, 10**11, 10**12]).memory_profile(),
    "steps of a program": lambda: HindsightProgram(FAR).to_linear(),
    "steps of a makespan": lambda: HindsightProgram(
        FAR.replace(deadlines=FAR.arrivals + 60), objective="makespan"
    ).to_linear(),
    "steps of a program of several": lambda: HindsightProgram(FAR, workers=2).to_linear(),
    "a program for Pyomo": lambda: HindsightProgram(FAR).to_pyomo(),
    "a program to solve": lambda: optsched.solve(HindsightProgram(FAR), time_limit=2),
    "ages on a cluster": lambda: optsched.run(
        LONG, "bf-io", cluster=optsched.Cluster(workers=2, slots=8)
    ),
    "chances of outputs": lambda: optsched.run(
        BELIEVED, "area-chance", intervals="common:1,999999999"
    ),
    "chances by history": lambda: optsched.run(
        BELIEVED, "area-chance", intervals="common:1,999999999", beliefs=LONG
    ),
    "upper ends of intervals": lambda: optsched.run(
        BELIEVED, "a-min", intervals="common:1,999999999"
    ),
    "steps to go": lambda: HindsightProgram(FAR, running=Running([1], [10**9])),
}


@pytest.mark.parametrize("extreme", EXTREMES)
def test_nothing_extreme_is_made_before_it_is_refused(extreme):
    """What is made all the same ends in a MemoryError here."""
    with address_space(3 * GIB // 2), contextlib.suppress(OptschedError):
        EXTREMES[extreme]()  # or it needs no such room


def test_programs_say_which_horizon_fits_and_it_does(monkeypatch):
    monkeypatch.setattr(arrays, "available_memory", lambda: GIB)
    instance = family("uniform", n=20, seed=1)
    for program in (HindsightProgram, lambda i, **h: HindsightProgram(i, workers=2, **h)):
        with pytest.raises(OptschedError, match="a horizon of up to") as refused:
            program(instance, horizon=10**9).to_linear()
        horizon = int(str(refused.value).split("up to ")[1].split(" fits")[0].replace(",", ""))
        size = program(instance, horizon=horizon).size_at
        most = arrays.room_for(arrays.NONZERO)
        assert size(horizon).nonzeros + size(horizon).rows <= most
        assert size(horizon + 1).nonzeros + size(horizon + 1).rows > most


def test_a_model_without_room_is_neither_solved_nor_written(monkeypatch, tmp_path):
    monkeypatch.setattr(arrays, "available_memory", lambda: 10**6)
    monkeypatch.setattr(arrays, "_SMALL", 10**5)
    columns = Variables(Family.of("x", item=range(100)), cost=1, upper=1)
    rows = Rows(Family.of("row", row=range(100)), {"x": np.ones((100, 100))}, upper=1)
    model = LinearModel.build("dense", [columns], [rows])
    for use in (
        model.to_pyomo,
        lambda: write_model(model, tmp_path / "dense.mps"),
        lambda: optsched.solve(model),
    ):
        with pytest.raises(OptschedError, match=r"10,000 nonzeros .* room for 2,500;"):
            use()
