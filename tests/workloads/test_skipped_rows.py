"""Reading on past rows at fault: each is left out, and listed with its fault."""

import numpy as np
import pytest
from trace_samples import BURST, NATIVE

from optsched import Instance, read_trace
from optsched.errors import InstanceError
from optsched.workloads import SkippedRow, formats, read_trace_skipping

MANY_FAULTS = (
    "arrival,prompt_tokens,output_tokens\n"
    "0,1,1\n"
    "9999,1,0\n"  # line 3; its arrival does not make the later rows late
    "2,2,2,2\n"
    "\n"
    "2,x,2\n"  # line 6
    "5,5,5\n"
    "4,4,4\n"  # line 8; it is sorted before line 7
    "5,6,6\n"
)


def test_skipping_leaves_out_and_lists_every_row_at_fault(trace):
    path = trace(MANY_FAULTS)
    instance, skipped = read_trace_skipping(path, 100)
    assert instance == Instance([1, 4, 5, 6], [1, 4, 5, 6], 100, [0, 4, 5, 5], name="trace")
    assert skipped == [
        SkippedRow(3, "output_tokens", "0", "every request makes at least 1 token"),
        SkippedRow(4, None, "", "the row has 4 cells, but the header has 3"),
        SkippedRow(6, "prompt_tokens", "x", "must be a whole number"),
    ]
    with pytest.warns(UserWarning, match="left 3 rows out, the first for line 3, column output"):
        assert read_trace(path, 100, skip_invalid=True) == instance
    assert read_trace(trace(NATIVE), 100, skip_invalid=True) == read_trace(trace(NATIVE), 100)


@pytest.mark.parametrize("limit", range(1, 8))
def test_limit_counts_the_rows_left_out(trace, limit):
    instance, skipped = read_trace_skipping(trace(MANY_FAULTS), 100, limit=limit)
    assert len(instance) + len(skipped) == limit


def test_when_every_row_is_left_out_that_is_an_error(trace):
    for content in (
        NATIVE,
        "prompt_tokens,output_tokens\n1,2,3\n",
        "prompt_tokens,output_tokens\n,\n",
    ):
        with pytest.raises(InstanceError, match="has no request to read; the first row has this"):
            read_trace_skipping(trace(content), 1)


def test_public_traces_with_an_unreadable_first_row_start_at_the_first_good_one(trace):
    content = BURST.replace("5,ChatGPT,472", "5,ChatGPT,472.5")
    instance, skipped = read_trace_skipping(trace(content), 2000)
    assert instance.arrivals.tolist() == [0]
    assert [row.line for row in skipped] == [2]


@pytest.mark.slow("True")
@pytest.mark.parametrize("skip", [False, True])
def test_blocks_make_no_difference(trace, monkeypatch, skip):
    rng = np.random.default_rng(1)
    count = 3000
    rows = np.stack([rng.integers(1, 99, count), rng.integers(1, 99, count)], axis=1)
    if skip:
        rows[rng.random(count) < 0.02, 1] = 0
    lines = [f"{a},{b},{i},n{i}" for i, (a, b) in enumerate(rows.tolist())]
    if skip:
        lines[70] += ",too many"
        lines[2500] = lines[2500].replace(",", ",x", 1)
    path = trace("prompt_tokens,output_tokens,arrival,label\n" + "\n".join(lines))
    whole = read_trace_skipping(path, 1000)
    monkeypatch.setattr(formats, "BLOCK", 997)
    assert read_trace_skipping(path, 1000) == whole
    assert bool(whole[1]) == skip
    mooncake = "".join(
        f'{{"timestamp": {i}, "input_length": {a}, "output_length": {b}}}\n'
        for i, (a, b) in enumerate(rows.tolist())
    )
    path = trace(mooncake + "\n" * 2000 + "7\n" * skip, "trace.jsonl")
    parts = read_trace_skipping(path, 1000)
    monkeypatch.undo()
    assert read_trace_skipping(path, 1000) == parts
    assert len(parts[0]) + len(parts[1]) == count + skip


def test_ragged_rows_with_stray_bytes_are_named(trace):
    path = trace(NATIVE.encode() + b"1,\xff,1\n\xfe,1\n")
    assert [str(row) for row in read_trace_skipping(path, 100)[1]] == [
        "line 4: the row has 3 cells, but the header has 2",
        r"line 5, column prompt_tokens, value '\\xfe': must be a whole number",
    ]
