"""Sweeps: every run once, whichever job executes it and whichever is killed."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time

import pandas as pd
import psutil
import pytest
from deadly_source import DeadlySource
from installed import ENGINE
from scipy import stats

import optsched
from optsched import DecisionPolicy, OptschedError, read_sweep, sweep
from optsched.experiments.cells import on_local_cores, sealed, unsealed
from optsched.experiments.sweep_plan import SweepRun, killed, perform, read_plan
from optsched.optimum import plan
from optsched.policies import Decision

CONFIG = {
    "seeds": 3,
    "bound": True,
    "instances": [{"family": "chat-and-summaries", "n": [30, 60], "load": [0.9, 1.1]}],
    "policies": [
        {"name": ["mc-sf", "area"], "rule": ["prefix", "backfill"]},
        {"name": "a-min", "intervals": "relative:0.5"},
        {"name": "alpha-beta-clearing:0.1,0.2"},
    ],
}
RUNS = 2 * 2 * 3 * (2 * 2 + 2)

#: Runs of about 20 ms, so that a job can be killed in the middle.
LONGER = {
    "seeds": 40,
    "instances": [{"family": "chat-and-summaries", "n": 3000, "load": 0.95}],
    "policies": [{"name": ["sorted-f", "area"]}],
}


def assert_same(frame, other):
    """Compare everything but the time it took; columns stand in the order of their coming."""
    frames = [each.drop(columns="seconds") for each in (frame, other)]
    pd.testing.assert_frame_equal(*frames, check_like=True)


@pytest.fixture(scope="module")
def serial(tmp_path_factory):
    """The results of this process alone."""
    return sweep(CONFIG, tmp_path_factory.mktemp("serial"), jobs=1).to_pandas()


@pytest.mark.slow
def test_rows_are_what_execute_gives(serial):
    assert len(serial) == serial.key.nunique() == RUNS
    assert set(serial.status) == {"ok"}
    assert set(serial.version) == {optsched.__version__}
    for row in serial.itertuples():
        how = json.loads(row.source)
        instance = optsched.family(how.pop("family"), seed=row.seed, **how)
        intervals = row.intervals if isinstance(row.intervals, str) else None
        execution = optsched.run(instance, row.policy, intervals=intervals, seed=row.seed)
        assert row.fingerprint == instance.fingerprint
        assert row.total_latency == execution.total_latency
        assert row.preempted_tokens == execution.preempted_tokens
        bound = optsched.bound(instance).value
        assert (row.bound, row.gap) == (bound, pytest.approx(1 - bound / row.total_latency))
    rules = serial.groupby("policy").rule.first()
    assert rules["area+backfill"] == "backfill"
    assert pd.isna(rules["a-min"])


@pytest.mark.slow
def test_processes_give_the_same(serial, tmp_path):
    seen = []
    result = sweep(CONFIG, tmp_path, jobs=2, on_progress=seen.append)
    assert (result.done, result.carried_out, result.failed) == (RUNS, RUNS, 0)
    assert repr(result) == f"<Sweep {str(tmp_path)!r}: {RUNS} of {RUNS} runs, 0 failed, complete>"
    assert f">{RUNS}</td>" in result._repr_html_()
    assert [progress.done for progress in seen] == list(range(1, RUNS + 1))
    assert seen[-1].seconds_left == 0
    assert str(seen[-1]) == f"{RUNS} of {RUNS} runs, about 0:00:00 left"
    assert_same(result.to_pandas(), serial)
    # One Parquet file that any reader finds, and nothing that it would trip over.
    assert len(list(tmp_path.glob("*.parquet"))) == 1
    assert len(pd.read_parquet(tmp_path)) == RUNS


def test_traces_and_hindsight(tmp_path):
    (tmp_path / "few.csv").write_text("prompt_tokens,output_tokens,arrival\n9,2,0\n3,4,1\n5,6,1\n")
    config = tmp_path / "sweep.toml"
    config.write_text(
        'instances = [{trace = "few.csv", memory = [12, 20]}]\n'
        'policies = [{name = "mc-sf"}, {name = "hindsight", time_limit = 10}]\n'
    )
    frame = sweep(config, tmp_path / "out", jobs=2).to_pandas()
    assert frame.policy.tolist() == 2 * ["mc-sf", "hindsight"]
    assert frame.memory.tolist() == [12, 12, 20, 20]
    for memory, rows in frame.groupby("memory"):
        instance = optsched.read_trace(tmp_path / "few.csv", memory)
        assert set(rows.fingerprint) == {instance.fingerprint}
        best = optsched.solve(instance)
        assert best.proven_optimal
        assert rows.total_latency.iloc[0] == optsched.run(instance, "mc-sf").total_latency
        assert rows.total_latency.iloc[1] == best.objective
        assert rows.iloc[1].proven_optimal
        assert rows.iloc[1].gap == 0


def test_what_solve_had_found_at_ctrl_c_is_no_row(tmp_path, monkeypatch):
    """It was kept as a result, the sweep went on, and no --resume did the run again."""
    work = vars(plan)["_work"]

    def struck(state):
        work(state)
        os.kill(os.getpid(), signal.SIGINT)

    config = {"instances": [{"family": "uniform", "n": 5}], "policies": [{"name": "hindsight"}]}
    monkeypatch.setattr(plan, "_work", struck)
    found = sweep(config, tmp_path, jobs=1)
    assert (found.status, found.done) == ("interrupted", 0)
    monkeypatch.undo()
    assert sweep(config, tmp_path, jobs=1, resume=True).done == 1


def test_a_failing_run_is_a_row(tmp_path):
    config = {
        "instances": [{"family": "uniform", "n": 20}],
        "policies": [
            {"name": "a-min", "intervals": ["common:49,60", "common:1,60"]},
            {"name": "alpha-greedy:0.01"},
        ],
    }
    result = sweep(config, tmp_path, jobs=1)
    frame = result.to_pandas().set_index("policy")
    assert (result.done, result.failed, result.status) == (3, 2, "complete")
    outside, fine = frame.loc["a-min", "status"]
    assert "is outside its interval [49, 60]" in outside
    assert fine == "ok"
    greedy = frame.loc["alpha-greedy:0.01"]
    assert greedy.status == f"completes {greedy.completed} of 20 requests"
    assert json.loads(greedy.loop)["period"] > 0
    assert pd.isna(greedy.total_latency)
    assert outside in str(result)


def test_runs_on_a_clock_stand_beside_runs_in_steps(tmp_path):
    config = {
        "bound": True,
        "instances": [{"family": "chat-and-summaries", "n": 20}],
        "policies": [{"name": "area"}, {"name": "area", "clock": "affine:0.01,0.0001"}],
    }
    steps, clocked = sweep(config, tmp_path, jobs=1).to_pandas().itertuples()
    instance = optsched.family("chat-and-summaries", n=20)
    run = optsched.run(instance, "area", clock="affine:0.01,0.0001")
    assert (clocked.unit, clocked.makespan) == ("s", run.metrics()["makespan"])
    assert steps.gap >= 0
    assert pd.isna(clocked.bound)  # which is in steps
    assert clocked.key != steps.key


def shortest_remaining(state):
    return Decision.most_urgent(state, state.forecast.upper - state.made)


def test_a_run_whose_preempted_requests_go_on_has_the_gap_that_compare_shows(tmp_path):
    policy = DecisionPolicy("srpt", "", shortest_remaining, preemption="recomputed")
    config = {
        "bound": True,
        "instances": [{"family": "exponential", "n": 30, "load": 1.2}],
        "policies": [{"name": [policy, "area"]}],
    }
    split, whole = sweep(config, tmp_path, jobs=1).to_pandas().itertuples()
    assert split.preemptions
    instance = optsched.family("exponential", n=30, load=1.2)
    compared = optsched.compare(instance, [policy, "area"])
    assert (split.gap, whole.gap) == (compared.gap("srpt"), compared.gap("area"))
    assert (split.bound_method, split.bound < whole.bound) == ("closed-form", True)


def test_folders_that_are_refused(tmp_path):
    config = CONFIG | {"seeds": 1, "name": "first"}
    out = tmp_path / "out"
    sweep(config, out, jobs=1)
    with pytest.raises(OptschedError, match="holds 24 of the 24 runs of this sweep already"):
        sweep(config, out, jobs=1)
    again = sweep(config, out, jobs=1, resume=True)
    assert (again.carried_out, again.done) == (0, 24)
    words = "another sweep, which differs in seeds and name; take another folder"
    with pytest.raises(OptschedError, match=f"holds results of {words}"):
        sweep(config | {"seeds": 2, "name": "second"}, out, resume=True)
    manifest = out / "_sweep.json"
    of_old = unsealed(manifest, manifest.name) | {"version": "0.0.1"}
    manifest.write_text(sealed(manifest.name, of_old))
    with pytest.raises(OptschedError, match=r"differs in version \('0\.0\.1', not '"):
        sweep(config, out, resume=True)
    with pytest.raises(OptschedError, match="holds other files, but no sweep"):
        sweep(config, tmp_path)
    with pytest.raises(OptschedError, match="is not a folder"):
        sweep(config, manifest)
    with pytest.raises(OptschedError, match="holds no sweep"):
        read_sweep(tmp_path)
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    with (fresh / "_lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OptschedError, match="another process is writing"):
            sweep(config, fresh)


def test_a_changed_trace_is_another_sweep(tmp_path):
    trace, out = tmp_path / "few.csv", tmp_path / "out"
    config = {"instances": [{"trace": str(trace), "memory": 20}], "policies": [{"name": "area"}]}
    trace.write_text("prompt_tokens,output_tokens\n9,2\n")
    sweep(config, out, jobs=1)
    trace.write_text("prompt_tokens,output_tokens\n9,3\n")
    words = "another sweep, which differs in the content of the files that it names; take"
    with pytest.raises(OptschedError, match=words):
        sweep(config, out, jobs=1, resume=True)


def test_executors_that_are_refused(tmp_path):
    for options, words in (
        ({"config": None}, "the sweep is None, but must be a TOML file or a mapping"),
        ({"seed": "x"}, "seed is 'x', but must be a whole number"),
        ({"seed": 2**63 - 1}, "the largest seed is 9223372036854775809, but must be below 2^63"),
        ({"executor": "dusk"}, "unknown executor 'dusk': did you mean 'dask'?"),
        ({"executor": "dask"}, "needs the address of a scheduler"),
        ({"address": "tcp://127.0.0.1:1"}, "only that executor takes one"),
        ({"jobs": 0}, "jobs is 0, but must be a whole number from 1"),
        ({"executor": "dask", "address": "nonsense"}, "no Dask scheduler answers at nonsense"),
    ):
        with pytest.raises(OptschedError) as caught:
            sweep(**{"config": CONFIG, "out": tmp_path / "out", **options})
        assert words in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_it_ends_with_the_means_of_its_rows(tmp_path):
    policies = [{"name": ["mc-sf", "area"]}, {"name": "a-min", "intervals": "relative:0.5"}]
    result = sweep(CONFIG | {"policies": policies}, tmp_path, jobs=1)
    rows = result.to_pandas().fillna({"intervals": "-"})
    groups = dict(list(rows.groupby(["policy", "n", "load"])))
    assert len(result.means) == len(groups) == 3 * 2 * 2
    for entry in result.means:
        found = groups[entry["policy"], entry["n"], entry["load"]]
        ends = stats.ttest_1samp(found.mean_latency, 0).confidence_interval(0.95)
        assert (entry["runs"], entry["failed"]) == (len(found), 0)
        assert [*entry["mean_latency"].values()] == pytest.approx(
            [found.mean_latency.mean(), *ends]
        )
        assert entry["gap"] == pytest.approx(found.gap.mean())
    assert result.to_dict()["means"] == result.means
    assert str(result).count("relative:0.5") == 4 + 3  # in the table, and in the headline
    assert len(result.plot().patches) == len(groups)
    assert result.notes[3] == "... and 1 other setting: see the table"
    for entry in result.means:
        here = [
            each
            for each in result.means
            if (each["n"], each["load"]) == (entry["n"], entry["load"])
        ]
        least = min(here, key=lambda each: each["mean_latency"]["mean"])
        if entry is least:
            assert entry["difference"] is None
            continue
        mine, its = (
            groups[each["policy"], each["n"], each["load"]].set_index("seed").mean_latency
            for each in (entry, least)
        )
        ends = stats.ttest_1samp(mine - its, 0).confidence_interval(1 - 0.05 / 2)
        assert [*entry["difference"].values()] == pytest.approx([(mine - its).mean(), *ends])


def test_its_headline_names_the_best_that_can_be_deployed_first(tmp_path):
    policies = [{"name": ["mc-sf", "area"]}, {"name": "alpha-beta-clearing:0.1,0.2"}]
    config = {"seeds": 2, "instances": [{"family": "uniform", "n": 30, "load": 1.2}]}
    result = sweep(config | {"policies": policies}, tmp_path / "steps", jobs=1)
    knows = {each["policy"]: each["knows"] for each in result.means}
    assert knows == {
        "mc-sf": "outputs",
        "area": "outputs",
        "alpha-beta-clearing:0.1,0.2": "nothing",
    }
    means = {each["policy"]: each["mean_latency"]["mean"] for each in result.means}
    able = means.pop("alpha-beta-clearing:0.1,0.2")
    least = min(means, key=means.get)
    assert str(result).startswith(
        "Of the policies that can be deployed, alpha-beta-clearing:0.1,0.2 has the least mean "
        f"latency, {able:,.4g} steps; it is told nothing of an output before it ends. {least}, "
        "told every true output, has "
    )
    clocks = {"name": [ENGINE, "area"], "clock": ["affine:0.01,0.0001", "affine:0.02,0.0001"]}
    timed = config | {"instances": [{"family": "chat-and-summaries", "n": 30}]}
    result = sweep(timed | {"policies": [clocks]}, tmp_path / "clock", jobs=1)
    first, second, *_ = result.notes
    assert first.startswith(
        f"clock affine:0.01,0.0001: Of the policies that can be deployed, {ENGINE} has"
    )
    assert " s; it is told nothing of an output" in second
    assert "area, told every true output, has " in second
    assert result.to_dict()["means"][0]["knows"] == "nothing"


def test_a_failed_run_has_no_mean(tmp_path):
    policy = optsched.DecisionPolicy("sometimes", "", fails_with_many)
    config = {"seeds": 2, "instances": [{"family": "uniform", "n": [5, 30]}]}
    result = sweep(config | {"policies": [{"name": policy}]}, tmp_path, jobs=1)
    few, many = result.means
    assert (few["failed"], many["failed"]) == (0, 2)
    assert few["mean_latency"]["mean"] > 0
    assert many["mean_latency"] is None
    assert "2 failed: ValueError: too many" in str(result)


def fails_with_many(state):
    if len(state.forecast) > 8:
        raise ValueError("too many")
    return state.waiting


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_done(serial, tmp_path):
    def interrupt(progress):
        if progress.done == 20:
            raise KeyboardInterrupt

    first = sweep(CONFIG, tmp_path, jobs=2, on_progress=interrupt)
    assert (first.status, first.done) == ("interrupted", 20)
    kept = first.to_pandas().set_index("key").seconds
    assert len(kept) == 20
    second = sweep(CONFIG, tmp_path, jobs=1, resume=True)
    assert (second.status, second.done, second.carried_out) == ("complete", RUNS, RUNS - 20)
    assert_same(second.to_pandas(), serial)
    assert second.to_pandas().set_index("key").seconds[kept.index].equals(kept)


def longer_sweep(folder, seeds, jobs):
    """Return a command whose every row is written at once, so that there is something to find."""
    config = folder / "longer.toml"
    config.write_text(
        f'seeds = {seeds}\ninstances = [{{family = "chat-and-summaries", n = 3000, load = 0.95}}]\n'
        'policies = [{name = ["sorted-f", "area"]}]\n'
    )
    code = (
        "import optsched.cli, optsched.experiments.sweep as f; f.FLUSH_EVERY = 0; "
        "optsched.cli.main()"
    )
    words = ["sweep", config, "--out", folder / "out", "--jobs", jobs]
    return [sys.executable, "-c", code, *map(str, words)]


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_killed_main_process_is_resumed(jobs, tmp_path):
    out = tmp_path / "out"
    command = longer_sweep(tmp_path, 40, jobs)
    main = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while main.poll() is None and not list(out.glob("part-*.parquet")):
        time.sleep(0.01)
    main.kill()
    assert main.wait() == -signal.SIGKILL
    (out / ".part-cut.parquet.tmp").write_text("half a file")
    kept = read_sweep(out).set_index("key").seconds
    assert 0 < len(kept) < 80
    done = subprocess.run([*command, "--resume", "--json", "-"], capture_output=True, check=True)
    result = json.loads(done.stdout)
    assert (result["done"], result["carried_out"]) == (80, 80 - len(kept))
    frame = read_sweep(out).set_index("key")
    assert (len(frame), frame.index.is_unique, set(frame.status)) == (80, True, {"ok"})
    assert frame.seconds[kept.index].equals(kept)
    assert {file.name for file in out.iterdir()} == {"_lock", "_sweep.json", "results.parquet"}


@pytest.mark.long
def test_a_process_killed_in_the_middle_loses_nothing(tmp_path):
    killed = []

    def kill(progress):
        if progress.done == 10:
            for child in psutil.process_iter(["ppid", "cmdline"]):  # also over those that end now
                ours = child.info["ppid"] == os.getpid()
                if ours and "serve_cells" in " ".join(child.info["cmdline"] or ()):
                    child.kill()
                    killed.append(child.pid)
                    break

    result = sweep(LONGER, tmp_path, jobs=2, on_progress=kill)
    frame = result.to_pandas()
    assert len(killed) == 1
    assert (len(frame), frame.key.nunique(), result.failed) == (80, 80, 0)


def deadly_runs():
    """Some runs, the third of which kills the job that executes it."""
    runs = list(read_plan(CONFIG | {"seeds": 1}).runs)
    deadly = SweepRun(DeadlySource((("family", "deadly"),)), "area", (), seed=0)
    return [*runs[:2], deadly, *runs[2:]], deadly


def assert_only_the_deadly_one_fails(rows, runs, deadly):
    statuses = {row["key"]: row["status"] for row in rows}
    assert len(rows) == len(statuses) == len(runs)
    assert {key for key, status in statuses.items() if status != "ok"} == {deadly.key}
    assert "killed whenever it did this run" in statuses[deadly.key]


@pytest.mark.slow
def test_a_run_that_kills_its_process_does_not_end_the_others():
    runs, deadly = deadly_runs()
    rows = dict(on_local_cores(perform, {run.key: run for run in runs}, 2, killed))
    assert rows.keys() == {run.key for run in runs}
    assert_only_the_deadly_one_fails(list(rows.values()), runs, deadly)


def test_the_command_line(optsched_command, refused, tmp_path):
    config, out = tmp_path / "few.toml", tmp_path / "out"
    config.write_text('instances = [{family = "uniform", n = 9}]\npolicies = [{name = "area"}]\n')
    command = ["sweep", config, "--out", out]
    page = tmp_path / "page.html"
    code, text, _ = optsched_command(*command, "--jobs", 1, "--seed", 5, "--html", page)
    assert "mean latency over the seeds" in text
    assert f"Sweep in {out}" in page.read_text()
    assert (code, f"1 of 1 runs in {out}, 1 of them carried out now" in text) == (0, True)
    assert read_sweep(out).seed.tolist() == [5]
    code, text, _ = optsched_command(*command, "--resume", "--seed", 5, "--json", "-")
    assert (code, json.loads(text)["carried_out"]) == (0, 0)
    error = refused(*command, "--resume")
    assert "holds results of another sweep, which differs in seeds; take another folder" in error


@pytest.mark.slow
def test_ctrl_c_ends_the_command_with_what_it_has(tmp_path):
    out = tmp_path / "out"
    command = longer_sweep(tmp_path, 500, 2)
    main = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    while main.poll() is None and not list(out.glob("part-*.parquet")):
        time.sleep(0.01)
    os.killpg(main.pid, signal.SIGINT)  # as a terminal does
    text, error = main.communicate(timeout=60)
    rows = len(read_sweep(out))
    assert (main.returncode, f"{rows} of 1,000 runs" in text) == (130, True)
    assert f"interrupted; --resume does the other {1000 - rows} runs" in error
    assert "Traceback" not in error
