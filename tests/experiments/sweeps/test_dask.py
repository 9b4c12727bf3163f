"""Sweeps on a Dask cluster: a scheduler and worker processes that the test starts and kills."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from deadly_source import DeadlySource

import optsched
from optsched import OptschedError, sweep
from optsched.experiments.cells import on_dask
from optsched.experiments.sweep_plan import SweepRun, killed, perform, read_plan

TESTS = Path(__file__).resolve().parents[2]
WORKERS = 2


def start(command, *arguments):
    """Start a process of Dask that finds the tests' helpers and keeps its words to itself."""
    env = os.environ | {
        "PYTHONPATH": str(TESTS),
        # A task that killed two workers is not given to a third.
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1",
    }
    module = [sys.executable, "-m", "distributed.cli.dask_" + command]
    return subprocess.Popen(
        [*module, *map(str, arguments), "--no-dashboard"],
        env=env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def end(process):
    """End a process and its children."""
    for child in psutil.Process(process.pid).children(recursive=True):
        child.kill()
    process.kill()
    process.wait()


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Address of a scheduler and two workers, which are started again when they are killed."""
    import distributed

    address = f"tcp://127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("dask")
    processes = [start("scheduler", "--host", address)]
    for _ in range(WORKERS):
        options = ("--nthreads", 1, "--local-directory", folder, "--nworkers", 1)
        processes.append(start("worker", address, *options))
    with distributed.Client(address, timeout=120, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=120)
    yield address, processes[1:]
    for process in reversed(processes):
        end(process)


CONFIG = {
    "seeds": 3,
    "bound": True,
    "instances": [{"family": "chat-and-summaries", "n": [30, 60], "load": 0.9}],
    "policies": [
        {"name": ["mc-sf", "area"], "rule": ["prefix", "backfill"]},
        {"name": "a-min", "intervals": "relative:0.5"},
        {"name": "alpha-beta-clearing:0.1,0.2"},
    ],
}


@pytest.mark.slow
def test_a_cluster_gives_what_this_process_gives(cluster, tmp_path):
    import pandas as pd

    address, _ = cluster
    exact = {"name": "hindsight", "time_limit": 20, "method": "exact"}
    trace = tmp_path / "few.csv"
    trace.write_text("prompt_tokens,output_tokens,arrival\n9,2,0\n3,4,1\n5,6,1\n")
    small = [{"trace": str(trace), "memory": 12}]
    for number, config in enumerate([CONFIG, {"instances": small, "policies": [exact]}]):
        frames = []
        for name, how in (("one", {"jobs": 1}), ("dask", {"executor": "dask", "address": address})):
            result = sweep(config, tmp_path / f"{name}-{number}", **how)
            assert result.failed == 0
            frames.append(result.to_pandas().drop(columns="seconds"))
        pd.testing.assert_frame_equal(*frames, check_like=True)
    assert len(frames[0]) == 1
    assert frames[0].proven_optimal.all()


def shortest_prompts(state):
    return sorted(state.waiting, key=lambda i: state.forecast.prompts[i])[:OF_THESE]


OF_THESE = 2


@pytest.mark.slow
def test_policies_of_ones_own_go_to_the_cluster_of_a_client(cluster, tmp_path):
    import distributed
    import pandas as pd

    config = CONFIG | {"policies": [{"name": [shortest_prompts, "area"]}]}
    source = ("family:equal-prompts", ["mc-sf", lambda instance: instance.outputs], [0.8], [50])
    here = sweep(config, tmp_path / "here", jobs=1).to_pandas()
    with distributed.Client(cluster[0], set_as_default=False) as client:
        there = sweep(config, tmp_path / "there", "dask", client).to_pandas()
        found = optsched.regret(*source, seeds=2, jobs=client)
        assert client.status == "running"  # it is the caller's
    frames = [frame.drop(columns="seconds") for frame in (here, there)]
    pd.testing.assert_frame_equal(*frames, check_like=True)
    assert set(there.status) == {"ok"}
    assert found.bands() == optsched.regret(*source, seeds=2).bands()
    with pytest.raises(OptschedError, match="the Client of Dask is closed"):
        sweep(config, tmp_path / "later", "dask", client)
    with pytest.raises(OptschedError, match="address is 8786, but must be that of a Dask"):
        sweep(config, tmp_path / "later", "dask", 8786)


@pytest.mark.long
def test_a_cluster_in_this_process_may_be_passed(tmp_path):
    import distributed

    how = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**how) as here:
        assert sweep(CONFIG, tmp_path, "dask", here).failed == 0


@pytest.mark.long
def test_a_worker_killed_in_the_middle_loses_nothing(cluster, tmp_path):
    address, workers = cluster
    config = {
        "seeds": 40,
        "instances": [{"family": "chat-and-summaries", "n": 3000, "load": 0.95}],
        "policies": [{"name": ["sorted-f", "area"]}],
    }
    killed = []

    def kill(progress):
        if progress.done == 10:
            for child in psutil.Process(workers[0].pid).children():
                if "spawn_main" in " ".join(child.cmdline()):
                    child.kill()
                    killed.append(child.pid)

    result = sweep(config, tmp_path, "dask", address, on_progress=kill)
    frame = result.to_pandas()
    assert len(killed) == 1
    assert (len(frame), frame.key.nunique(), result.failed) == (80, 80, 0)


@pytest.mark.long
def test_a_run_that_kills_its_worker_does_not_end_the_others(cluster):
    address, _ = cluster
    runs = list(read_plan(CONFIG | {"seeds": 1}).runs)
    deadly = SweepRun(DeadlySource((("family", "deadly"),)), "area", (), seed=0)
    runs.insert(6, deadly)
    cells = {run.key: run for run in runs}
    rows = [row for _, row in on_dask(perform, cells, address, killed)]
    statuses = {row["key"]: row["status"] for row in rows}
    assert len(rows) == len(statuses) == len(runs)
    assert "killed whenever it did this run" in statuses[deadly.key]
    assert sum(status == "ok" for status in statuses.values()) == len(runs) - 1


@pytest.mark.slow
def test_addresses_where_no_scheduler_answers(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"tcp://127.0.0.1:{mute.getsockname()[1]}"
        nobody = f"tcp://127.0.0.1:{free_port()}"
        for address in (silent, nobody):
            began = time.monotonic()
            with pytest.raises(OptschedError, match=f"no Dask scheduler answers at {address}"):
                sweep(CONFIG, tmp_path / "out", "dask", address)
            # Not a speed: giving up is a limit of time by itself.
            assert time.monotonic() - began < 10
    assert not (tmp_path / "out").exists()


@pytest.mark.long
def test_a_scheduler_without_workers(tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    scheduler = start("scheduler", "--host", address)
    try:
        for _ in range(100):
            try:
                sweep(CONFIG, tmp_path, "dask", address)
            except OptschedError as error:
                if "has no workers; start some" in str(error):
                    break
                time.sleep(0.1)
        else:
            pytest.fail("never said that there are no workers")
    finally:
        end(scheduler)
