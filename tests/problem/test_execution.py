"""Executions: metrics, memory of all attempts, logs, and the checker of attempts."""

import gzip

import numpy as np
import pandas as pd
import pytest

from optsched import Execution, Instance, OptschedError, run

INSTANCE = Instance([0, 0, 0], [10, 10, 2], 10, labels=["a", "b", "c"])


@pytest.fixture
def execution():
    return run(INSTANCE, "a-min", intervals="common:1,10")


def test_metrics_add_up(execution):
    metrics = execution.metrics()
    made = execution.tokens.sum()
    assert metrics["preempted_tokens"] == made - INSTANCE.outputs.sum()
    assert metrics["evictions"] == len(execution.requests) - 3
    assert metrics["throughput"] == pytest.approx(22 / metrics["makespan"])
    assert metrics["total_latency"] == execution.schedule.total_latency
    assert metrics["completed"] == metrics["requests"] == 3
    assert metrics["loop"] is None
    assert metrics["intervals"] == "common:1,10"


def test_memory_profile_counts_preempted_attempts(execution):
    usage = np.zeros(execution.schedule.makespan + 1, dtype=int)
    for request, start, tokens in zip(
        execution.requests, execution.starts, execution.tokens, strict=True
    ):
        for token in range(1, tokens + 1):
            usage[start + token] += INSTANCE.prompts[request] + token
    assert execution.memory_profile().tolist() == usage.tolist()
    assert execution.peak_memory == usage.max()
    assert usage.sum() > execution.schedule.memory_profile().sum()


def test_logs_are_complete_and_read_back(execution, tmp_path):
    table = execution.to_pandas()
    assert table["end"].is_monotonic_increasing
    assert set(table["label"]) == {"a", "b", "c"}
    for name in ("log.csv", "log.csv.gz", "log.parquet"):
        execution.to_log(tmp_path / name)
        read = pd.read_parquet if name.endswith("parquet") else pd.read_csv
        pd.testing.assert_frame_equal(read(tmp_path / name), table, check_dtype=False)
    with gzip.open(tmp_path / "log.csv.gz", "rt") as lines:
        assert next(lines).startswith("request,label,arrival,start,end,tokens,completed")
    with pytest.raises(OptschedError, match="a log ends in"):
        execution.to_log(tmp_path / "log.txt")


def test_a_log_that_cannot_be_finished_leaves_the_old_one(execution, tmp_path, monkeypatch):
    def fill_the_disk(frame, stream, **options):
        with stream if hasattr(stream, "write") else open(stream, "wb") as file:
            file.write(b"request,")
            raise OSError("no space left")

    log = tmp_path / "log.csv"
    log.write_text("old")
    monkeypatch.setattr(pd.DataFrame, "to_csv", fill_the_disk)
    with pytest.raises(OSError, match="no space left"):
        execution.to_log(log)
    assert log.read_text() == "old"


def test_the_checker_finds_what_is_wrong():
    late = INSTANCE.replace(arrivals=[0, 0, 1])

    def wrong(requests, starts, tokens):
        arrays = (np.array(values) for values in (requests, starts, tokens))
        return " ".join(map(str, Execution(late, "by hand", *arrays).check()))

    assert wrong([0, 1, 2], [0, 10, 20], [10, 10, 2]) == ""
    assert "request c starts before it arrives" in wrong([0, 1, 2], [2, 12, 0], [10, 10, 2])
    assert "request c makes more tokens" in wrong([0, 1, 2], [0, 10, 30], [10, 10, 3])
    assert "request a has attempts that overlap" in wrong(
        [0, 0, 1, 2], [0, 2, 20, 40], [3, 10, 10, 2]
    )
    assert "request b is completed 0 times" in wrong([0, 1, 2], [0, 10, 20], [10, 9, 2])
    assert "request a is completed 2 times" in wrong([0, 0, 1, 2], [0, 10, 20, 40], [10, 10, 10, 2])
    assert "10 fit" in wrong([0, 1, 2], [0, 0, 20], [10, 10, 2])


def test_an_execution_prints_what_was_lost(execution):
    text = str(execution)
    assert text.startswith("a-min (common:1,10): 3 requests, feasible")
    assert "tokens (restarted)" in text
    assert "preempted" not in str(run(INSTANCE, "mc-sf"))
    loop = str(run(INSTANCE, "alpha-greedy:0.3"))
    assert "of 3 requests complete" in loop
    assert "repeats itself" in loop
