"""The file of a sweep: what it asks for, and one sentence for everything that is wrong in it."""

import os

import pytest
from fresh import printed

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


BAD_INSTANCES = {
    "instances 1: unknown key 'lod'; did you mean 'load'?": {"family": "uniform", "lod": 1},
    "unknown key 'memry'; did you mean 'memory'?": {"trace": "x.csv", "memry": 1},
    "instances 1: name either a family or a trace": {"n": 3},
    "no family 'unifrom'; did you mean 'uniform'?": {"family": "unifrom"},
    "(family = 'uniform', n = 0): n is 0, but must": {"family": "uniform", "n": [3, 0]},
    "n = 9223372036854775808): n is": {"family": "uniform", "n": 2**63},
    "load = 'x'): load is 'x', but must be positive": {"family": "uniform", "load": "x"},
    "there is no file none.csv; check its name": {"trace": "none.csv", "memory": 9},
    'write a family as family = "uniform"': {"trace": "family:uniform"},
    "'uniform' is not a table; write it under [[instances]]": "uniform",
    "instances 1: n is an empty list; name at least one": {"family": "uniform", "n": []},
}
BAD_POLICIES = {
    "policies 1: unknown policy 'aera': did you mean 'area'?": {"name": "aera"},
    "unknown key 'intervls'; did you mean 'intervals'?": {"name": "area", "intervls": "exact"},
    "policies 1: policy 'a-min' plans with intervals": {"name": "a-min"},
    "unknown intervals 'exakt': did you": {"name": "a-min", "intervals": ["exact", "exakt"]},
    "unknown rule 'skp': did you mean 'skip'?": {"name": "area", "rule": "skp"},
    "run of area on family = 'uniform' with seed 0 is asked for twice": {"name": ["area", "area"]},
    "hindsight has options of its own": {"name": ["area", "hindsight"]},
    "unknown key 'time'; did you mean 'time_limit'?": {"name": "hindsight", "time": 3},
    "unknown method 'exactly': did you mean 'exact'?": {"name": "hindsight", "method": "exactly"},
    "policies 1: time_limit is 0, but must": {"name": "hindsight", "time_limit": 0},
    "policies 1: work is 0, but must": {"name": "hindsight", "work": 0, "method": "search"},
    "the method 'auto' goes by time": {"name": "hindsight", "work": 1},
    "policies 1: unknown clock 'unitt': did you": {"name": "area", "clock": "unitt"},
    "policies 1: the key 'name' is missing": {"rule": "skip"},
    "policies 1: name is an empty list; name at least one": {"name": []},
}
BAD_SWEEPS = {
    "unknown key 'polices'; did you mean 'policies'?": {"polices": []},
    "names no instances; add at least one table [[instances]]": {"instances": []},
    "seeds is 0, but must be how many": {"seeds": 0},
    "seeds is [1, -1], but must": {"seeds": [1, -1]},
    "but must be how many there are, up to 1,000,000": {"seeds": 10**26},
    "bound true or false": {"bound": 1},
    **{words: {"instances": [table]} for words, table in BAD_INSTANCES.items()},
    **{words: {"policies": [table]} for words, table in BAD_POLICIES.items()},
}


@pytest.mark.parametrize("words", BAD_SWEEPS)
def test_bad_input_is_one_sentence(words):
    config = {"instances": [{"family": "uniform"}], "policies": [{"name": "area"}]}
    with pytest.raises(OptschedError) as caught:
        read_plan(config | BAD_SWEEPS[words])
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
