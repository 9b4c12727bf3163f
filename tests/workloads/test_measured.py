"""Logs of measured runs: what an engine needed, beside the requests."""

import json

import numpy as np
import pytest
from trace_samples import MOONCAKE, lines

from optsched.errors import InstanceError
from optsched.workloads import read_measured

ROWS = (
    {"request_id": "b", "input_toks": 7, "output_toks": 3, "arrival_time": 1787267981.5,
     "queued_ts": 27537.5, "first_token_ts": 27538.0, "last_token_ts": 27540.5},
    {"request_id": "a", "input_toks": 5, "output_toks": 2, "arrival_time": 1787267980.0,
     "queued_ts": 27536.0, "first_token_ts": 27536.25, "last_token_ts": None},
)  # fmt: skip


def test_instants_of_tokens_become_seconds_since_the_arrival(trace):
    path = trace(lines(*ROWS), "requests.jsonl")
    instance, measured = read_measured(path, 100, seconds_per_step=0.5)
    assert instance.prompts.tolist() == [5, 7]
    assert instance.arrivals.tolist() == [0, 3]
    assert measured.arrivals.tolist() == [0, 1.5]
    assert measured.first_token.tolist() == [0.25, 0.5]
    assert np.array_equal(measured.latency, [np.nan, 3], equal_nan=True)


def test_a_log_without_measured_times_is_refused(trace):
    with pytest.raises(InstanceError, match=r"x.jsonl has no times of tokens, only requests; pass"):
        read_measured(trace(MOONCAKE, "x.jsonl"), 10_000)


def test_a_closed_loop_has_durations_but_no_instants(trace):
    log = {"input_lens": [5, 6], "output_lens": [2, 3], "ttfts": [0.5, 1], "itls": [[1], [1, 2]]}
    instance, measured = read_measured(trace(json.dumps(log), "x.json"), 100)
    assert instance.seconds_per_step is None
    assert np.isnan(measured.arrivals).all()
    assert [each.tolist() for each in measured[1:]] == [[0.5, 1], [1.5, 4]]
    columns = "prompt=a,output=b,ttft=first_ms,latency=all_s"
    path = trace("a,b,first_ms,all_s\n5,2,500,1.5\n6,3,,4\n")
    measured = read_measured(path, 100, columns=columns)[1]
    assert np.array_equal(measured.first_token, [0.5, np.nan], equal_nan=True)
    assert measured.latency.tolist() == [1.5, 4]
    path = trace("a,b,first,all\n5,2,500,1500\n")
    columns = "prompt=a,output=b,ttft=first,latency=all"
    with pytest.raises(InstanceError, match=r"the unit of column (first|all), with values such as"):
        read_measured(path, 100, columns=columns)
    without = lines(*({k: v for k, v in row.items() if "q" not in k} for row in ROWS))
    with pytest.raises(InstanceError, match="has no times of tokens, only requests"):
        read_measured(trace(without, "x.jsonl"), 100)  # they are on another clock
