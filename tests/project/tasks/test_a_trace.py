"""Task A, as a stranger: 200 requests of a trace solved, bounded, explained, exported, read."""

import numpy as np
import pytest

import optsched
from optsched import HindsightProgram, Instance, Schedule, SolveParams
from optsched.errors import InstanceError, ModelError, SolverError


@pytest.fixture
def trace(tmp_path):
    """Return a trace of chats that arrive and some long prompts between them."""
    rng = np.random.default_rng(5)
    long = rng.random(200) < 0.1
    requests = Instance(
        prompts=np.where(long, rng.integers(30, 60, 200), rng.integers(1, 12, 200)),
        outputs=rng.integers(1, 9, 200),
        memory=100,
        arrivals=np.sort(rng.integers(0, 260, 200)),
    )
    path = tmp_path / "trace.csv"
    requests.to_csv(path)
    return path


@pytest.mark.slow
def test_from_a_trace_to_a_proof_and_a_file_for_another_solver(trace, tmp_path):
    instance = optsched.read_trace(trace, memory=100)
    assert len(instance) == 200

    # Solve and bound.
    result = optsched.solve(instance, method="search", params=SolveParams(work=0.3))
    proven = optsched.bound(instance)
    assert proven.value <= result.objective
    assert optsched.verify(proven.certificate, instance) <= result.objective
    assert result.schedule.check() == []

    # Explain: order regret and waste add up to the gap.
    explained = result.explain()
    assert len(explained.to_pandas()) == 200
    assert str(explained)

    # The integer program within the best schedule known, which is its start.
    program = HindsightProgram(instance).within(result)
    assert program.horizon == result.schedule.makespan
    found = optsched.solve(program, params=SolveParams(gap_limit=1.0))
    assert found.objective <= result.objective
    assert found.answer.check() == []

    # Export and read back; the same columns stand in the same order.
    model = program.to_linear()
    optsched.write_model(model, tmp_path / "program.mps")
    back = optsched.read_model(tmp_path / "program.mps")
    assert back.same_as(model)
    point = program.write_point(found.answer)
    again = optsched.solve(back, params=SolveParams(start=point, gap_limit=1.0))
    assert program.read(again.values).total_latency == again.objective <= found.objective

    # Tables and files keep everything.
    found.answer.to_json(tmp_path / "schedule.json")
    assert Schedule.from_json(tmp_path / "schedule.json", instance) == found.answer
    table = found.answer.to_pandas()
    assert table["latency"].sum() == found.answer.total_latency
    assert Instance.from_pandas(instance.to_pandas(), memory=100) == instance.replace(
        name="instance"
    )


def test_errors_on_the_way_give_advice_that_works(trace, tmp_path):
    instance = optsched.read_trace(trace, memory=100)
    program = HindsightProgram(instance)
    with pytest.raises(ModelError, match=r"such as optsched\.run\(instance, 'area'\)"):
        program.within("area")
    near = program.within(optsched.run(instance, "area"))

    cut = optsched.solve(near.to_linear(), method="cp-sat", time_limit=1e-3)
    with pytest.raises(ModelError, match="no answer was found; the status and raw_status"):
        near.read(cut.values)
    assert cut.status == "time limit"

    frame = instance.to_pandas().rename(columns={"arrival": "arrival_s"})
    with pytest.raises(InstanceError, match="write the table to a CSV file, whose seconds"):
        Instance.from_pandas(frame, memory=100)
    frame.to_csv(tmp_path / "seconds.csv", index=False)
    assert len(optsched.read_trace(tmp_path / "seconds.csv", memory=100)) == 200

    late = Schedule(instance, instance.arrivals)
    with pytest.raises(SolverError, match=r"start is infeasible: memory.*solve without a start"):
        optsched.solve(program.within(late))
