"""Several workers as models: printed formulas in loops, names in MPS and Pyomo, what is refused."""

import numpy as np
import pyomo.environ as pyo
import pytest
from brute_force import OBJECTIVES, joint_optima, optimum
from effort import share
from strategies import tiny_joint

from optsched import HindsightProgram, Instance, Schedule, Workers, family, solve
from optsched.errors import ModelError
from optsched.models import EventProgram, Running
from optsched.models.program import largest_first, renumbered
from optsched.solvers.backends.files import read_model, write_model


def columns_of(program):
    """List request, worker and step of each column, in loops."""
    instance, workers = program.instance, program.workers
    order = largest_first(instance).tolist()
    listed = []
    for i in range(len(instance)):
        for g, memory in enumerate(workers.memories):
            before = [h for h in range(g) if workers.classes[h] == workers.classes[g]]
            eligible = workers.eligible is None or workers.eligible[i, g]
            if instance.peaks[i] > memory or not eligible or order.index(i) < len(before):
                continue
            end = program.horizon
            if instance.deadlines is not None:
                end = min(end, int(instance.deadlines[i]))
            starts = range(int(instance.arrivals[i]), end - int(instance.outputs[i]) + 1)
            listed += [(i, g, k) for k in starts]
    return listed


def named(program, family, *key):
    """Name a column or a row; on one worker its number is left out."""
    if len(program.workers) == 1:
        key = (*key[:-2], key[-1])
    return f"{family}[{','.join(map(str, key))}]"


def literal_rows(program):
    """Write the rows as they are printed: name, entries, and both limits."""
    instance, workers = program.instance, program.workers
    columns, makespan = columns_of(program), program.objective == "makespan"
    rows = {}
    for i in range(len(instance)):
        rows[f"once[{i}]"] = (
            {named(program, "start", *c): 1 for c in columns if c[0] == i},
            (1, 1),
        )
    for g, memory in enumerate(workers.memories):
        for t in range(1, program.horizon + 1):
            held = {}
            for i, worker, k in columns:
                if worker == g and k < t <= k + instance.outputs[i]:
                    held[named(program, "start", i, g, k)] = int(instance.prompts[i]) + t - k
            limit = memory
            if makespan:
                held[f"busy[{t}]"], limit = -memory, 0
            rows[named(program, "memory", g, t)] = (held, (-np.inf, limit))
    for t in range(1, program.horizon) if makespan else ():
        rows[f"order[{t}]"] = ({f"busy[{t}]": 1, f"busy[{t + 1}]": -1}, (0, np.inf))
    return rows


def rows_of(model):
    """Read the rows of a linear model by their names."""
    names, found = model.column_names(), {}
    for i, name in enumerate(model.row_names()):
        row = model.matrix[[i]].tocoo()
        entries = {names[j]: v for j, v in zip(row.coords[1], row.data, strict=True)}
        found[name] = (entries, (model.row_lower[i], model.row_upper[i]))
    return found


def drawn(rng, objective=None):
    """Draw a program, some of them with deadlines."""
    instance, workers = tiny_joint(rng)
    slack = rng.integers(0, 6, len(instance))
    if rng.random() < 0.3:
        ends = int(instance.arrivals[-1]) + np.cumsum(instance.outputs)
        instance = instance.replace(deadlines=ends + slack)
    horizon = int(instance.arrivals[-1] + instance.outputs.sum()) + int(rng.integers(0, 3))
    objective = objective or OBJECTIVES[int(rng.integers(3))]
    return HindsightProgram(instance, horizon, objective, aggregate=False, workers=workers)


@pytest.mark.parametrize("seed", range(share(60)))
def test_lowering_equals_the_printed_formulas_looped(seed):
    program = drawn(np.random.default_rng(seed))
    model = program.to_linear()
    assert rows_of(model) == literal_rows(program)
    assert model.integer.all()
    starts, columns = model.columns_of("start"), columns_of(program)
    assert [model.column_names()[j] for j in starts] == [
        named(program, "start", *column) for column in columns
    ]
    instance = program.instance
    weights = np.ones(len(instance)) if instance.weights is None else instance.weights
    for j, (i, _, k) in zip(starts, columns, strict=True):
        latency = k + int(instance.outputs[i]) - int(instance.arrivals[i])
        cost = {"makespan": 0, "total-latency": latency}.get(
            program.objective, weights[i] * latency
        )
        assert model.cost[j] == cost
    rows, columns = model.matrix.shape
    assert program.size_at(program.horizon) == (columns, model.matrix.nnz, rows)


@pytest.mark.parametrize("seed", range(share(30)))
def test_an_independent_solver_finds_the_optimum_of_brute_force(seed):
    rng = np.random.default_rng(1000 + seed)
    instance, workers = tiny_joint(rng)
    for objective, least in joint_optima(instance, workers).items():
        program = HindsightProgram(instance, objective=objective, workers=workers)
        assert optimum(program.to_linear()) == pytest.approx(least)


@pytest.mark.parametrize("seed", range(share(40)))
def test_points_and_schedules_of_several_are_two_ways_to_say_the_same(seed):
    rng = np.random.default_rng(2000 + seed)
    program = drawn(rng)
    instance, workers, model = program.instance, program.workers, program.to_linear()
    allowed = workers.allowed(instance)
    ends = np.full(len(instance), program.horizon)
    if instance.deadlines is not None:
        ends = np.minimum(ends, instance.deadlines)
    starts = rng.integers(instance.arrivals, ends - instance.outputs + 1)
    placement = [int(rng.choice(np.flatnonzero(row))) for row in allowed]
    joint = Schedule(instance, starts, workers=workers, placement=placement)
    point = program.write_point(joint)
    again = program.read(point)
    assert np.array_equal(again.starts, joint.starts)
    assert np.array_equal(again.placement, renumbered(joint))
    assert program.cost(again) == pytest.approx(model.objective(point))
    assert bool(model.violations(point)) == bool(again.check()) == bool(joint.check())


def test_workers_that_can_be_exchanged_are_numbered_by_use():
    rng = np.random.default_rng(5)
    for _ in range(40):
        instance, workers = tiny_joint(rng)
        placement = [int(rng.choice(np.flatnonzero(row))) for row in workers.allowed(instance)]
        joint = Schedule(instance, np.zeros(len(instance)), workers=workers, placement=placement)
        named = renumbered(joint)
        order, classes = largest_first(instance), workers.classes
        together = np.equal.outer(named, named) == np.equal.outer(joint.placement, joint.placement)
        assert together.all()
        assert np.array_equal(classes[named], classes[joint.placement])
        for number in range(int(classes.max()) + 1):
            members = np.flatnonzero(classes == number)
            used = [g for g in named[order] if classes[g] == number]
            first_uses = list(dict.fromkeys(used))
            assert first_uses == members[: len(first_uses)].tolist()


def test_equal_requests_are_ordered_by_start_in_the_events():
    instance = Instance([3, 3, 3, 1], [2, 2, 2, 1], memory=9)
    events = EventProgram(instance, workers=Workers([9, 9]))
    assert [group.tolist() for group in events.equals] == [[0, 1, 2]]
    joint = Schedule(instance, [4, 0, 2, 0], workers=2, placement=[1, 0, 0, 1])
    read = events.read(events.write_point(joint))
    assert read.starts.tolist() == [0, 2, 4, 0]
    assert (read.total_latency, bool(read.check())) == (joint.total_latency, bool(joint.check()))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_names_survive_mps_and_pyomo(objective, tmp_path):
    instance = Instance([2, 4, 1], [2, 1, 3], 7, weights=[2, 1, 1])
    program = HindsightProgram(instance, objective=objective, workers=[7, 5])
    model = program.to_linear()
    write_model(model, tmp_path / "joint.mps")
    written = (tmp_path / "joint.mps").read_text()
    for name in ("start[0,0,0]", "start[2,1,1]", "once[1]", "memory[1,3]"):
        assert name in written
    again = read_model(tmp_path / "joint.mps")
    assert rows_of(again) == rows_of(model)
    assert again.column_names() == model.column_names()
    native = program.to_pyomo()
    assert {str(index) for index in native.once} == {"0", "1", "2"}
    assert native.start[2, 1, 1].is_binary()
    assert native.memory[1, 3].upper() == (0 if objective == "makespan" else 5)
    assert solve(native).objective == joint_optima(instance, program.workers)[objective]
    first = [index for index in native.start if index[1] == 0 and index[0] == 0]
    native.elsewhere = pyo.Constraint(expr=sum(native.start[index] for index in first) == 0)
    eligible = [[False, True], [True, True], [True, True]]
    tied = joint_optima(instance, Workers([7, 5], eligible))[objective]
    assert solve(native).objective == tied


def test_what_is_wrong_is_refused_in_one_sentence():
    instance, workers = Instance([1, 5], [1, 2], memory=7), Workers([7, 7])
    program = HindsightProgram(instance, horizon=3, workers=workers)
    point = np.zeros(len(program.to_linear().cost))
    late = Schedule(instance, [9, 0], workers=workers, placement=[0, 0])
    other = Schedule(instance, [0, 0], workers=3, placement=[0, 0])
    huge = Instance([1] * 4, [10**6] * 4, memory=10**7)
    for call, sentence in (
        (
            lambda: HindsightProgram(instance, horizon=1, workers=workers),
            "cannot complete by step 1",
        ),
        (lambda: program.read(point[:-1]), "the program has 8 columns"),
        (lambda: program.read(point), "starts request 0 and its equals 0 times"),
        (
            lambda: program.write_point(late),
            "on worker 0, but the program lets it start at steps 0 to 2",
        ),
        (lambda: program.write_point(other), "another instance or other workers"),
        (
            lambda: EventProgram(instance.replace(deadlines=[9, 1]), workers=workers),
            "request 1 arrives at step 0, but would have to start by step -1",
        ),
        (
            lambda: EventProgram(instance, running=Running([1], [1]), workers=workers),
            "running are those of one worker",
        ),
        (
            lambda: HindsightProgram(huge, workers=2).to_linear(),
            "rows and nonzeros over .* a horizon of up to [0-9,]+ fits",
        ),
    ):
        with pytest.raises(ModelError, match=sentence):
            call()
    with pytest.raises(Exception, match="objective"):
        HindsightProgram(instance, objective="mean", workers=workers)
    assert "2 workers, steps 0..3" in repr(program)
    assert EventProgram(family("uniform", n=3), workers=[100, 100]).weights.tolist() == [1, 1, 1]
