"""Logs of measured runs: what an engine needed, beside the requests."""

from __future__ import annotations

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
