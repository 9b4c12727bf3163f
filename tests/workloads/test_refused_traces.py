"""Traces that cannot be read: one sentence names the file, the line, the column and the value."""

import contextlib
import gzip
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tabled import tabled
from trace_samples import AZURE, BURST, BURST_SESSIONS, MOONCAKE, NATIVE, TIMED, VIDUR

from optsched import read_trace
from optsched.errors import InstanceError
from optsched.workloads import read_trace_skipping

ROWS = "prompt_tokens,output_tokens,{}\n1,1,{}\n2,2,{}\n"


@tabled(
    (
        NATIVE + "98,3\n",
        "line 4, column prompt_tokens, value '98': prompts 98 . outputs 3 is more than fits, "
        "but the memory holds 100; leave the request out or raise the memory to 101",
    ),
    (BURST + "46,m,3,0,3,Conversation log\n", "line 4, column Response tokens, value '0'"),
    (MOONCAKE + "{}\n", "line 3, column input_length, value '': must be a whole number"),
    (MOONCAKE + "\n[]\n", "line 4: the line holds no JSON object"),
    (MOONCAKE[:-1] + "{}\n", "line 2: the line holds no JSON object"),
    (MOONCAKE + "{\n", "line 3: the line holds no JSON object"),
    (
        MOONCAKE + '{"timestamp": "x", "input_length": 1, "output_length": 1}',
        "line 3, column timestamp, value '\"x\"': must be a whole number",
    ),
    (
        MOONCAKE + '{"timestamp": 40000, "input_length": 1.5, "output_length": 1}',
        "line 3, column input_length, value '1.5': must be a whole number",
    ),
    (
        NATIVE.encode() + b"1,\xff\n",
        r"line 4, column output_tokens, value '.*xff': must be a w",
    ),
    (
        ROWS.format("label", "a", "b").encode()[:-2] + b"\xff\n",
        "line 3, column label, value '.*xff': must be UTF-8 text",
    ),
    (b"\x89PNG\r\n\x1a\n\0\0", "line 1: this is not UTF-8 text; pass a CSV or JSONL trace"),
    (b"P\0K\3\4\n1,2\n", "line 1: this is not UTF-8 text; pass a CSV or JSONL trace"),
    (b'{"prompts": "\xff"', "trace.csv is not UTF-8 text; give an instance as JSON"),
)
def test_bad_content_is_refused_in_one_sentence(trace, content, message):
    path = trace(content)
    memory = 2000 if content[:4] in (AZURE[:4], BURST[:4]) else 100
    memory = 10_000 if str(content).startswith(MOONCAKE[:20]) else memory
    with pytest.raises(InstanceError, match=message) as caught:
        read_trace(path, memory)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).count("\n") == 0


def test_json_lines_of_no_known_kind_are_refused_with_the_kinds(trace):
    said = (
        r"line 1: the keys id, input_len are of no format that is known \(optsched CSV, .*, "
        r"Mooncake JSONL, Qwen Bailian JSONL, TraceLab, Dynamo request trace, AIPerf records, "
        r"LLMServingSim run, .*\); --columns prompt=COLUMN,output=COLUMN,arrival=COLUMN says what"
    )
    with pytest.raises(InstanceError, match=said):
        read_trace(trace('{"id": 1, "input_len": 5}\n', "x.jsonl"), 100)


def test_errors_carry_column_request_value_and_reason(trace):
    with pytest.raises(InstanceError) as caught:
        read_trace(trace(NATIVE + "7,0\n"), 100)
    error = caught.value
    assert (error.column, error.request, error.value) == ("output_tokens", 2, "0")
    assert error.reason == "every request makes at least 1 token"


def test_the_first_row_at_fault_is_named_whatever_is_wrong_with_later_ones(trace):
    content = NATIVE + "1,0\n1,1,1\nx,1\n"
    with pytest.raises(InstanceError, match="line 4, column output_tokens"):
        read_trace(trace(content), 100)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: packed[:-9], "damaged or truncated gzip"),
        (lambda packed: packed[: len(packed) // 2], "damaged or truncated gzip"),
        (lambda packed: packed[:60] + b"\0\1\2\3" + packed[64:], "damaged or truncated gzip"),
        (lambda packed: packed + b"more", "damaged or truncated gzip"),
        (lambda packed: packed[:2], "damaged or truncated gzip"),
        (lambda _: NATIVE.encode(), "is not packed with gzip; rename it or pack it"),
        (lambda _: b"", "is empty"),
        (lambda _: gzip.compress(b""), "is empty"),
    ],
)
def test_damaged_gzip_is_refused(trace, damage, message):
    rows = np.random.default_rng(0).integers(1, 1000, (5000, 2))
    text = "prompt_tokens,output_tokens\n" + "".join(f"{a},{b}\n" for a, b in rows)
    with pytest.raises(InstanceError, match=message):
        read_trace(trace(damage(gzip.compress(text.encode())), "trace.csv.gz"), 10_000)


def test_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(InstanceError, match=r"there is no file .*missing\.csv; check its name"):
        read_trace(tmp_path / "missing.csv", 10)
    with pytest.raises(InstanceError, match="is a directory; name a file in it"):
        read_trace(tmp_path, 10)
    with pytest.raises(InstanceError, match=r"there is no file|cannot be read"):
        read_trace(tmp_path / ("x" * 300), 10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"memory": None},
            "trace.csv does not say how much the worker holds; pass the memory (--memory M, or "
            "--llm and --gpu, such as llama-3.1-8b and h100-80gb)",
        ),
        ({"memory": 0}, "memory is 0, but must be a whole number"),
        ({"memory": 1.5}, "memory is 1.5, but must be a whole number"),
        ({"memory": "many"}, "memory is 'many', but must be a whole number"),
        ({"limit": 0}, "limit is 0, but must be a whole number of rows from 1"),
        ({"limit": 2.5}, "limit is 2.5, but must be a whole number of rows from 1"),
        ({"seconds_per_step": 0}, "seconds_per_step is 0, but must be positive"),
        ({"seconds_per_step": math.nan}, "seconds_per_step is nan, but must be positive"),
    ],
)
def test_bad_arguments_are_refused(trace, arguments, message):
    with pytest.raises(InstanceError, match=re.escape(message)):
        read_trace(trace(NATIVE), **({"memory": 100} | arguments))


COLUMNS = ["arrival_s", "prompt_tokens", "output_tokens", "weight", "deadline", "output_upper"]


@given(
    row=st.integers(0, 4),
    column=st.sampled_from(COLUMNS),
    cell=st.one_of(
        st.text(max_size=8),
        st.sampled_from(["-1", "0", "1e99", "nan", "-inf", "0x10", "1_0", "½", "٣", "1;2", "''"]),
        st.binary(max_size=6),
    ),
)
def test_one_corrupted_cell_is_named_or_harmless(tmp_path_factory, row, column, cell):
    raw = cell if isinstance(cell, bytes) else cell.encode()
    assume(not set(raw) & set(b',"\r\n'))  # these change the rows, not the cell
    cells = [[str(i), "5", "6", "1.5", "70", "9"] for i in range(5)]
    lines = [",".join(COLUMNS).encode()]
    for i, values in enumerate(cells):
        parts = [value.encode() for value in values]
        if i == row:
            parts[COLUMNS.index(column)] = raw
        lines.append(b",".join(parts))
    path = tmp_path_factory.mktemp("corrupt") / "trace.csv"
    path.write_bytes(b"\n".join(lines))
    instance, skipped = read_trace_skipping(path, 100)
    if not skipped:
        assert read_trace(path, 100) == instance
        float(raw.decode())  # only what is a number is taken for one
        return
    with pytest.raises(InstanceError) as caught:
        read_trace(path, 100)
    # More output than fits shows in the prompt, and more than promised in the upper limit.
    blamed = {"output_tokens": {"prompt_tokens", "output_upper"}}.get(column, set()) | {column}
    assert caught.value.column in blamed
    # A late arrival is only seen when a request that came in time follows it.
    lines = range(row + 2, 7) if column == "arrival_s" else [row + 2]
    assert skipped[0].line in lines
    assert str(caught.value).startswith(f"{path}, line {skipped[0].line}, column ")


SAMPLES = [
    sample.encode()
    for sample in (
        TIMED,
        AZURE,
        BURST_SESSIONS,
        VIDUR,
        MOONCAKE,
        '{"prompts": [1], "outputs": [2]}',
    )
]


@given(
    sample=st.sampled_from(SAMPLES),
    edits=st.lists(
        st.tuples(
            st.floats(0, 1),
            st.integers(0, 3),
            st.one_of(
                st.binary(max_size=3), st.sampled_from([b'"', b",", b"\n", b"\r", b"{", b"\0"])
            ),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_whatever_happens_to_a_file_the_error_is_an_instance_error(tmp_path_factory, sample, edits):
    for place, removed, inserted in edits:
        start = int(place * len(sample))
        sample = sample[:start] + inserted + sample[start + removed :]
    path = tmp_path_factory.mktemp("edits") / "trace.csv"
    path.write_bytes(sample)
    for read in (read_trace, read_trace_skipping):
        with contextlib.suppress(InstanceError):
            read(path, 16_492)


def test_what_cannot_be_split_into_rows_is_refused(trace):
    # Both parsers have a limit to the length of a cell.
    content = "prompt_tokens,output_tokens,label\n1,1,a\n1,1,{}\n1,0,b\n"
    with pytest.raises(InstanceError, match=r"trace\.csv, line 3: field larger .*; check its quot"):
        read_trace_skipping(trace(content.format("x" * 5_000_000)), 100)
    with pytest.raises(InstanceError, match=r"trace\.csv, line 3: field larger .*; check its quot"):
        read_trace(trace(content.format("x" * 200_000)), 100)
    content = NATIVE + "7,8,9\n" + "1,1\n" * 20_000 + content.format("x" * 5_000_000)
    with pytest.raises(InstanceError, match="line 4: the row has 3 cells"):
        read_trace(trace(content), 100)
