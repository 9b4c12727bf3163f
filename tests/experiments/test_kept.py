"""What is kept of sweeps and regret: never given to another question, and mended where damaged."""

import itertools
import json

import numpy as np
import pytest
from installed import SERVING
from tabled import tables

from optsched import Instance, OptschedError, read_sweep, regret, sweep
from optsched.clock import LinearClock
from optsched.experiments import sweep_plan
from optsched.experiments.cells import JsonFolder
from optsched.experiments.regret import _tasks as tasks
from optsched.experiments.sweep_plan import read_plan
from optsched.policies import EnginePolicy, PriorityPolicy

CLOCK = {"name": "c", "constant": 0.1, "prefill_tokens": 0.01, "hinges": [[8, 0.5]]}
CLOCKS, TRACES, ENGINES, VLLM = tables(__file__).values()
Engine = EnginePolicy
if SERVING:
    from optsched.policies import VllmPolicy as Engine

    ENGINES += VLLM
    ENGINES += [
        {"order": PriorityPolicy("mine", "", lambda instance: instance.outputs)},
        {"order": PriorityPolicy("mine", "", lambda instance: -instance.outputs)},
    ]
TRACE = Instance(
    *([4, 5, 6], [3, 2, 4], 40, [0, 1, 2]),
    labels="abc",
    seconds_per_step=1.0,
    hash_ids=[[1], [1], [2, 3]],
    hash_block=4,
)
SEEDS, MEMORIES, LIMITS = [0, 1, 2], [300, 301], [0.0, 1.0]


def of_files(folder, clock, trace):
    """Write what a question names, always under the same names."""
    (folder / "c.json").write_text(json.dumps(CLOCK | clock))
    TRACE.replace(**trace).to_json(folder / "t.json")
    return str(folder / "c.json"), str(folder / "t.json")


def keys_of_sweeps(folder):
    """Yield the keys of one run each; no two of them ask the same."""
    base = {"clock": {}, "trace": {}, "engine": {}, "seed": 0}
    single = [{}]
    for name, values in (("clock", CLOCKS), ("trace", TRACES), ("engine", ENGINES)):
        single += [{name: value} for value in values[1:]]
    for asked in (base | each for each in [*single, {"seed": 1}]):
        clock, trace = of_files(folder, asked["clock"], asked["trace"])
        policy = Engine("engine", "", **asked["engine"])
        table = {"name": policy, "clock": clock}
        config = {"instances": [{"trace": trace}], "policies": [table]}
        yield [run.key for run in read_plan(config, asked["seed"]).runs]


def keys_of_regrets(folder):
    """Yield the keys of the instances of regrets that differ in one field each."""
    usual = {"loads": [0.8], "horizons": [20], "seeds": 1}
    for clock in CLOCKS:
        name, trace = of_files(folder, clock, {})
        yield [*tasks(trace, ["area"], **usual | {"loads": [20.0]}, clock=name)]
    for trace in TRACES:
        if "follows" not in trace:
            _, name = of_files(folder, {}, trace)
            yield [*tasks(name, ["area"], **usual)]
    for seed, memory, limit in itertools.product(SEEDS, MEMORIES, LIMITS):
        how = usual | {"seeds": [seed], "memory": memory, "time_limit": limit}
        yield [*tasks("family:equal-prompts", ["area"], **how)]
    yield [*tasks("family:equal-prompts,output_most=9", ["area"], **usual)]
    own = lambda instance: instance.outputs  # noqa: E731
    for policies in (["mc-sf"], ["mc-sf", "area"], ["area", "mc-sf"], [own]):
        yield [*tasks("family:equal-prompts", policies, **usual)]


@pytest.mark.slow
def test_no_two_of_200_pairs_of_questions_share_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_plan, "rehearse", lambda *_, **options: None)  # some cannot run
    pairs = 0
    for found in (list(keys_of_sweeps(tmp_path)), list(keys_of_regrets(tmp_path))):
        for keys, others in itertools.combinations(found, 2):
            assert keys
            assert not set(keys) & set(others)
            pairs += 1
    assert pairs >= 200


def test_a_result_under_the_name_of_another_question_is_not_taken(tmp_path):
    JsonFolder(tmp_path, []).add("one", {"value": 1})
    (tmp_path / "one.json").rename(tmp_path / "two.json")
    assert JsonFolder(tmp_path, ["one", "two"]) == {}


def sweep_on(folder, **how):
    config = folder / "x.toml"
    config.write_text(
        f"seeds = 2\ninstances = [{{trace = '{folder}/t.json'}}]\n"
        f"policies = [{{name = 'area', clock = '{folder}/c.json'}}]\n"
    )
    return sweep(config, folder / "out", jobs=1, **how)


@pytest.mark.parametrize(
    ("clock", "trace"),
    [({"hinges": [[1, 5.0]]}, {}), ({}, {"hash_ids": [[1], [4], [2, 3]]}), ({}, {"labels": "xyz"})],
)
def test_a_sweep_whose_files_changed_is_another(tmp_path, clock, trace):
    of_files(tmp_path, {}, {})
    first = sweep_on(tmp_path).to_pandas()
    assert (set(first.status), sweep_on(tmp_path, resume=True).carried_out) == ({"ok"}, 0)
    of_files(tmp_path, clock, trace)
    with pytest.raises(OptschedError, match=r"which differs in (the content|own code)"):
        sweep_on(tmp_path, resume=True)
    (tmp_path / "out").rename(tmp_path / "before")
    again = sweep_on(tmp_path).to_pandas()
    assert not set(first.key) & set(again.key)
    assert (again.clock == f"{tmp_path}/c.json").all()
    assert (first.mean_latency != again.mean_latency).all() == bool(clock)


def regret_on(folder, clock=None, **how):
    how = {"loads": [0.5], "horizons": [40], "seeds": 2, "clock": clock} | how
    return regret(policies=["mc-sf"], keep_instances=folder / "kept", **how)


def test_a_regret_with_other_hinges_is_another(tmp_path):
    clock, other = (LinearClock(**CLOCK | {"hinges": [[8, x]]}) for x in (0.5, 5.0))
    first = regret_on(tmp_path, clock)
    assert regret_on(tmp_path, clock, resume=True).cells == first.cells
    with pytest.raises(OptschedError, match=r"another regret, which differs in clock \('c "):
        regret_on(tmp_path, other, resume=True)


DAMAGE = ["", "[]", "null", "3", '{"x": 1}', "{", "[" * 100_000, "\x00"]


@pytest.mark.parametrize("text", DAMAGE, ids=lambda text: repr(text)[:8])
def test_a_damaged_regret_is_done_again_where_it_is_damaged(tmp_path, text):
    first, folder = regret_on(tmp_path), tmp_path / "kept"
    one, other = sorted(folder.glob("load-*.json"))
    kept = other.read_text()
    for damaged in ([one], [folder / "_regret.json"], [one, folder / "_regret.json"]):
        for file in damaged:
            file.write_text(text)
        with pytest.raises(OptschedError, match=r"is missing, damaged|holds 1 of the 2 inst"):
            regret_on(tmp_path)
        assert regret_on(tmp_path, resume=True).bands() == first.bands()
        assert other.read_text() == kept
    numbers = json.loads(kept)
    other.write_text(json.dumps(numbers | {"best": numbers["best"] - 1}))
    assert regret_on(tmp_path, resume=True).bands() == first.bands()
    (folder / "_regret.json").unlink()
    assert regret_on(tmp_path, resume=True).bands() == first.bands()


CONFIG = {
    "seeds": 3,
    "instances": [{"family": "uniform", "n": 9}],
    "policies": [{"name": ["area", "mc-sf"]}],
}


def damaged(content):
    """Return what a disk may have made of a file."""
    flipped = bytearray(content)
    flipped[content.index(b"uniform")] ^= 255
    return [b"", b"PAR1", content[: len(content) // 2], content[4:], b"[]", bytes(flipped)]


@pytest.mark.slow
def test_a_damaged_sweep_is_done_again_where_it_is_damaged(tmp_path):
    def resumed():
        return sweep(CONFIG, tmp_path, jobs=1, resume=True)

    whole = sweep(CONFIG, tmp_path, jobs=1).to_pandas()
    content = (tmp_path / "results.parquet").read_bytes()
    for bad in damaged(content):
        (tmp_path / "results.parquet").write_bytes(bad)
        with pytest.raises(OptschedError, match=r"results\.parquet is damaged; resume the sweep"):
            read_sweep(tmp_path)
        assert (resumed().carried_out, len(read_sweep(tmp_path))) == (6, 6)
    for text in DAMAGE:
        (tmp_path / "_sweep.json").write_text(text)
        with pytest.raises(OptschedError, match=r"_sweep\.json is missing, damaged"):
            sweep(CONFIG, tmp_path, jobs=1)
        assert resumed().carried_out == 0
    (tmp_path / "_sweep.json").unlink()
    assert (resumed().carried_out, resumed().means is not None) == (0, True)
    again = read_sweep(tmp_path)
    assert again.drop(columns="seconds").equals(whole.drop(columns="seconds"))


def test_part_files_that_are_damaged_cost_their_own_runs(tmp_path):
    def stop(progress):
        if progress.done == 4:
            raise KeyboardInterrupt

    assert sweep(CONFIG, tmp_path, jobs=1, on_progress=stop).done == 4
    (part,) = tmp_path.glob("part-*.parquet")
    frame = read_sweep(tmp_path)
    for number in range(4):
        frame.iloc[[number]].to_parquet(tmp_path / f"part-{number}.parquet")
    part.write_bytes(part.read_bytes()[:200])
    (tmp_path / "part-2.parquet").write_text("null")
    assert sweep(CONFIG, tmp_path, jobs=1, resume=True).carried_out == 3
    assert read_sweep(tmp_path).key.is_unique


def test_rows_of_another_sweep_are_not_taken(tmp_path):
    sweep(CONFIG | {"seeds": [0, 7]}, tmp_path, jobs=1)
    (tmp_path / "_sweep.json").write_text("")
    result = sweep(CONFIG, tmp_path, jobs=1, resume=True)
    assert (result.carried_out, result.done) == (4, 6)
    frame = read_sweep(tmp_path)
    assert (sorted(set(frame.seed)), len(frame)) == ([0, 1, 2], 6)
    assert np.array_equal(frame.key, [run.key for run in read_plan(CONFIG).runs])


@pytest.mark.parametrize("folder", ["/proc/x", "/proc/x/y", "/dev/null/x", "/dev/full"])
def test_a_folder_that_cannot_be_written_is_one_sentence(folder, tmp_path, refused):
    config = tmp_path / "few.toml"
    config.write_text('instances = [{family = "uniform", n = 9}]\npolicies = [{name = "area"}]\n')
    small = ("--loads", 0.5, "--horizons", 40, "--seeds", 1)
    for command in (
        ("sweep", config, "--out", folder),
        ("regret", "family:equal-prompts", *small, "--keep-instances", folder),
    ):
        assert "cannot write results into" in refused(*command)


def asked(n, **more):
    return {
        "instances": [{"family": "uniform", "n": n}],
        "policies": [{"name": ["area", "mc-sf"]}],
        "seeds": 2,
    } | more


@pytest.mark.parametrize("lost", ["missing", "damaged", "older"])
def test_without_a_manifest_rows_are_taken_by_their_own_keys_alone(tmp_path, lost):
    large, small = asked([5, 6, 7]), asked([6, 8])
    sweep(large, tmp_path, jobs=1)
    manifest = tmp_path / "_sweep.json"
    if lost == "missing":
        manifest.unlink()
    else:
        text = manifest.read_text()
        manifest.write_text(text[:-9] if lost == "damaged" else text.replace('"seal"', '"said"'))
    with pytest.raises(OptschedError, match=r"missing, damaged or of an earlier version"):
        sweep(small, tmp_path, jobs=1)
    found = sweep(small, tmp_path, jobs=1, resume=True)
    assert (found.done, found.carried_out) == (8, 4)
    rows = read_sweep(tmp_path)
    assert rows.n.tolist() == [6] * 4 + [8] * 4
    assert {entry["n"] for entry in found.means} == {6, 8}
    alone = read_sweep(sweep(small, tmp_path / "alone", jobs=1).folder)
    assert rows.total_latency.tolist() == alone.total_latency.tolist()
    assert len(list(tmp_path.glob("_other-*.parquet"))) == 1  # nothing is lost


def test_rows_of_other_code_of_the_same_version_are_done_again(tmp_path, monkeypatch):
    from optsched._internal import fingerprints

    sweep(asked(5), tmp_path, jobs=1)
    monkeypatch.setattr(fingerprints, "_code", lambda: "of an earlier commit")
    (tmp_path / "_sweep.json").unlink()
    found = sweep(asked(5), tmp_path, jobs=1, resume=True)
    assert (found.done, found.carried_out) == (4, 4)
    assert len(read_sweep(tmp_path)) == 4


def test_a_row_that_was_changed_breaks_the_seal_of_its_table(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    sweep(asked(5), tmp_path, jobs=1)
    file = tmp_path / "results.parquet"
    table = parquet.read_table(file)
    place = table.column_names.index("total_latency")
    less = pa.array([1] * len(table), table.schema.field(place).type)
    parquet.write_table(table.set_column(place, "total_latency", less), file)
    with pytest.raises(OptschedError, match=r"results.parquet is damaged; resume the sweep"):
        read_sweep(tmp_path)
    assert sweep(asked(5), tmp_path, jobs=1, resume=True).carried_out == 4
    assert (read_sweep(tmp_path).total_latency > 1).all()
