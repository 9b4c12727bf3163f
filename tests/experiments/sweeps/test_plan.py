"""The file of a sweep: what it asks for, and one sentence for everything that is wrong in it."""

import os

import pytest
from fresh import printed
from tabled import tabled

import optsched
from optsched import OptschedError, Workers
from optsched.experiments.sweep_plan import read_plan

INSTANCES = [{"family": "uniform", "n": [5, 6], "load": [0.5, 0.9, 1.1]}]
POLICIES = [
    {"name": ["mc-sf", "area"], "rule": ["prefix", "backfill"]},
    {"name": "a-min", "intervals": ["exact", "relative:0.5"]},
]

TOML = """
name = "small"
seeds = [3, 4]
[[instances]]
trace = "few.csv"
memory = [20, 30]
[[policies]]
name = "area"
"""


@pytest.fixture
def file(tmp_path):
    """A sweep over a trace that stands beside it."""
    (tmp_path / "few.csv").write_text("prompt_tokens,output_tokens\n3,4\n5,6\n")
    path = tmp_path / "small.toml"
    path.write_text(TOML)
    return path


def test_lists_make_the_product():
    plan = read_plan({"seeds": 4, "instances": INSTANCES, "policies": POLICIES})
    assert len(plan.runs) == 2 * 3 * 4 * (2 * 2 + 2)
    assert len({run.key for run in plan.runs}) == len(plan.runs)
    assert {run.policy for run in plan.runs} == {
        "mc-sf", "mc-sf+backfill", "area", "area+backfill", "a-min",
    }  # fmt: skip
    assert {run.seed for run in plan.runs} == {0, 1, 2, 3}
    moved = read_plan({"seeds": 4, "instances": INSTANCES, "policies": POLICIES}, seed=2)
    assert len({run.key for run in plan.runs} & {run.key for run in moved.runs}) == 2 * 3 * 2 * 6


def test_memories_of_workers_are_one_column_of_text():
    def told(*workers):
        table = {"name": "area", "workers": list(workers), "router": "jsq"}
        plan = read_plan({"instances": [{"family": "uniform", "n": 5}], "policies": [table]})
        return [dict(run.options)["workers"] for run in plan.runs]

    assert told(2, 3) == [2, 3]
    assert told([200, 100, 100], Workers([300])) == ["200,100x2", "300x1"]
    assert told(2, [200, 100]) == ["2", "200,100"]
    with pytest.raises(OptschedError, match="policies 1: there are no workers"):
        told([])


def test_traces_stand_beside_the_file_and_are_read_once(file):
    plan = read_plan(file)
    assert [(run.source.trace.memory, run.seed) for run in plan.runs] == [
        (20, 3), (20, 4), (30, 3), (30, 4),
    ]  # fmt: skip
    assert plan.name == "small"


@pytest.mark.slow
def test_a_run_is_known_by_what_it_is(file):
    keys = [run.key for run in read_plan(file).runs]
    # Another process, with another seed of Python's own hashes and another working directory.
    code = (
        "from optsched.experiments.sweep_plan import read_plan; "
        f"print([run.key for run in read_plan({str(file)!r}).runs])"
    )
    env = os.environ | {"PYTHONHASHSEED": "7"}
    assert printed(code, env=env, cwd="/") == str(keys)
    (file.parent / "few.csv").write_text("prompt_tokens,output_tokens\n3,4\n5,7\n")
    assert not set(keys) & {run.key for run in read_plan(file).runs}


def test_what_a_policy_may_know_is_part_of_a_trace(file):
    bounds = "prompt_tokens,output_tokens,output_lower,output_upper\n3,4,1,{}\n"
    keys = set()
    for upper in (5, 6):
        (file.parent / "few.csv").write_text(bounds.format(upper))
        keys |= {run.key for run in read_plan(file).runs}
    assert len(keys) == 8


@tabled()
def test_bad_input_is_one_sentence(words, change):
    config = {"instances": [{"family": "uniform"}], "policies": [{"name": "area"}]}
    with pytest.raises(OptschedError) as caught:
        read_plan(config | change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(OptschedError, match=r"cannot read the sweep .*none\.toml: No such file"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("seeds = = 3")
    with pytest.raises(OptschedError, match=r"bad\.toml is not valid TOML: .*line 1"):
        read_plan(tmp_path / "bad.toml")
    (tmp_path / "bad.toml").write_text("seeds = " + 100_000 * "[")
    with pytest.raises(OptschedError, match=r"bad\.toml is not valid TOML: maximum recursion"):
        read_plan(tmp_path / "bad.toml")


def test_a_trace_may_be_an_instance(tmp_path):
    made = [optsched.family("uniform", n=8, seed=seed, load=1) for seed in (3, 4)]
    config = {
        "instances": [{"trace": made}, {"trace": made[0], "memory": 150}, {"family": "uniform"}],
        "policies": [{"name": "area"}],
    }
    rows = optsched.sweep(config, tmp_path / "out", jobs=1).to_pandas()
    larger = made[0].replace(memory=150)
    expected = [optsched.run(each, "area").total_latency for each in (*made, larger)]
    assert rows.total_latency.tolist()[:3] == expected
    again = optsched.sweep(config, tmp_path / "out", jobs=1, resume=True)
    assert again.done == 4
