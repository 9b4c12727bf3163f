"""Reading traces: every format, every kind of bad input, and limits."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import math
import os
import threading
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from optsched import Instance, InstanceError, read_trace
from optsched.instance import MAX_STEP
from optsched.workloads import SkippedRow, files, read_trace_skipping
from optsched.workloads.trace import to_steps
from tests.strategies import instances

NATIVE = "prompt_tokens,output_tokens\n3,4\n5,6\n"
TIMED = "arrival_s,prompt_tokens,output_tokens\n0,3,4\n0.5,5,6\n"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2024-05-10 23:59:59.500000+00:00,12,5\n2024-05-11 00:00:00+00:00,13,6\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n45.0,GPT-4,1087,230,1317,API log\n"
)
BURST_SESSIONS = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,a,1.5,ChatGPT,472,18,490,Conversation log\n45.0,,2,GPT-4,1087,230,1317,API log\n"
)
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,374,44\n5.8926549999999995,396,109\n"
VIDUR_LENGTHS = (
    ",num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n0,374,44,418,8.5\n"
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 48]}\n'
)


@pytest.fixture
def trace(tmp_path):
    """Write a trace and give its path."""

    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.mark.parametrize(
    ("content", "prompts", "outputs", "arrivals"),
    [
        (NATIVE, [3, 5], [4, 6], [0, 0]),
        (TIMED, [3, 5], [4, 6], [0, 10]),
        (AZURE, [374, 396], [44, 109], [0, 87]),  # 4.314579 s
        (AZURE_2024, [12, 13], [5, 6], [0, 10]),
        (BURST, [472, 1087], [18, 230], [0, 800]),
        (BURST_SESSIONS, [472, 1087], [18, 230], [0, 800]),
        (VIDUR, [374, 396], [44, 109], [0, 118]),
        (VIDUR_LENGTHS, [374], [44], [0]),
        (MOONCAKE, [6955, 6472], [52, 26], [0, 62]),  # 3053 ms
    ],
)
def test_every_format_is_recognised_by_its_content(trace, content, prompts, outputs, arrivals):
    for path in (trace(content, "x"), trace(gzip.compress(content.encode()), "x.gz")):
        instance = read_trace(path, 16_492)
        assert instance.prompts.tolist() == prompts
        assert instance.outputs.tolist() == outputs
        assert instance.arrivals.tolist() == arrivals
        assert instance.name == "x"
        assert (instance.seconds_per_step is None) == (content in (NATIVE, VIDUR_LENGTHS))


def test_all_native_columns_become_fields(trace):
    path = trace(
        "label,deadline,weight,output_upper,output_lower,arrival,output_tokens,prompt_tokens\n"
        '"a, ""b""",50,0.5,9,1,0,4,0\nc,60,2,4,4,7,4,3\n'
    )
    assert read_trace(path, 10) == Instance(
        [0, 3],
        [4, 4],
        10,
        [0, 7],
        weights=[0.5, 2],
        deadlines=[50, 60],
        output_lower=[1, 4],
        output_upper=[9, 4],
        labels=['a, "b"', "c"],
        name="trace",
    )


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + NATIVE.encode(),
        NATIVE.replace("\n", "\r\n"),
        NATIVE + "\n\n",
        NATIVE.rstrip(),
        NATIVE.replace("\n5", "\n\n\n5"),
        " prompt_tokens , output_tokens\n3, 4\n 5 ,6 \n",
        "prompt_tokens,output_tokens\n3.0,4\n5.,6e0\n",
        '"prompt_tokens","output_tokens"\n"3","4"\n"5","6"\n',
        "output_tokens,prompt_tokens\n4,3\n6,5\n",
        "prompt_tokens,output_tokens\n0003,4\n5,+6\n",
    ],
)
def test_harmless_variants_are_accepted(trace, content):
    assert read_trace(trace(content), 11) == read_trace(trace(NATIVE), 11)


ROWS = "prompt_tokens,output_tokens,{}\n1,1,{}\n2,2,{}\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "trace.csv is empty; it needs a header line and requests"),
        ("prompt_tokens,output_tokens\n", "trace.csv has no request to read"),
        ("prompt_tokens,output_tokens\n\n\n", "trace.csv has no request to read"),
        ("\n\n\n", "line 1: column 'prompt_tokens' of the optsched CSV format is missing"),
        ("a,b\n1,2\n", "line 1: unknown column 'a'; known: ContextTokens,"),
        (
            "prompt_tokens,output_token\n1,2\n",
            "line 1: unknown column 'output_token'; did you mean 'output_tokens'?",
        ),
        ("prompt_tokens\n1\n", "line 1: column 'output_tokens' of the optsched CSV format is miss"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "column 'GeneratedTokens' of the Azure LLM inference"),
        (
            "prompt_tokens,output_tokens,output_tokens\n1,2,3\n",
            "line 1: column 'output_tokens' is there 2 times",
        ),
        (ROWS.format("arrival,arrival_s", "1,1", "1,1"), "arrival_s .seconds. are both there"),
        (NATIVE + "7,8,9\n", "line 4: the row has 3 cells, but the header has 2"),
        (NATIVE + "7\n1,1\n", "line 4: the row has 1 cells, but the header has 2"),
        (
            NATIVE.replace("\n5", "\n\n5") + "7,0\n",
            "line 5, column output_tokens, value '0': outputs is 0, but every request makes at",
        ),
        (NATIVE + "12.5,1\n", "line 4, column prompt_tokens, value '12.5': must be a whole num"),
        (NATIVE + "abc,1\n", "line 4, column prompt_tokens, value 'abc': must be a whole number"),
        (NATIVE + ",1\n", "line 4, column prompt_tokens, value '': must be a whole number"),
        (NATIVE + "NaN,1\n", "line 4, column prompt_tokens, value 'NaN': must be a whole number"),
        (NATIVE + "1,inf\n", "line 4, column output_tokens, value 'inf': must be a whole number"),
        (NATIVE + "1,0x1\n", "line 4, column output_tokens, value '0x1': must be a whole number"),
        (NATIVE + "1," + "9" * 30 + "\n", "line 4, column output_tokens, value '9+': must be"),
        (NATIVE + "-1,1\n", "line 4, column prompt_tokens, value '-1': prompts is -1, but cannot"),
        (
            NATIVE + "98,3\n",
            "line 4, column prompt_tokens, value '98': prompts 98 . outputs 3 is more than fits, "
            "but the memory holds 100; leave the request out or raise the memory",
        ),
        (ROWS.format("arrival", -1, 2), "line 2, column arrival, value '-1': .*before time zero"),
        (ROWS.format("arrival", 9, 2), "line 3, column arrival, value '2': .* sort the requests"),
        (ROWS.format("arrival", 1, 10**13), "line 3, column arrival, value '10+': .*beyond step"),
        (ROWS.format("arrival_s", -1, 2), "line 2, column arrival_s, value '-1': .*before time z"),
        (ROWS.format("arrival_s", 1, "1e300"), "line 3, column arrival_s, value '1e300': .*beyond"),
        (ROWS.format("arrival_s", 1, "soon"), "line 3, column arrival_s, value 'soon': must be a "),
        (ROWS.format("arrival_s", 1, "nan"), "line 3, column arrival_s, value 'nan': must be a fi"),
        (ROWS.format("weight", 1, 0), "line 3, column weight, value '0': weights is 0.0, but must"),
        (ROWS.format("deadline", 1, 0), "line 3, column deadline, value '0': deadlines is 0, but"),
        (ROWS.format("output_lower", 1, 3), "line 3, column output_lower, value '3': .* above"),
        (ROWS.format("output_upper", 1, 1), "line 3, column output_upper, value '1': .* below"),
        (ROWS.format("label", "a", '"b'), "line 3, column label, value 'b.n': must be UTF-8 text"),
        (
            ROWS.format("label", '"a', "b"),
            "cells, but the header has 3|on one line|cannot be split",
        ),
        (
            AZURE + "2023-11-16,0,1\n",
            "line 4, column ContextTokens, value '0': prompts is 0, which",
        ),
        (
            AZURE + "16/11/2023,1,1\n",
            "line 4, column TIMESTAMP, value '16/11/2023': must be a date",
        ),
        (AZURE + "2023-11-16,1,1\n", "line 4, column TIMESTAMP, value '2023-11-16': .*before time"),
        (BURST + "46,m,3,0,3,Conversation log\n", "line 4, column Response tokens, value '0'"),
        (BURST + '46,"m,3,1,3,log\n47,m,3,1,3,log\n', "line 4"),
        (MOONCAKE + "{}\n", "line 3, column input_length, value '': must be a whole number"),
        (MOONCAKE + "\n[]\n", "line 4: the line holds no JSON object"),
        (MOONCAKE[:-1] + "{}\n", "line 2: the line holds no JSON object"),
        (MOONCAKE + "{\n", "line 3: the line holds no JSON object"),
        (
            MOONCAKE + '{"timestamp": "x", "input_length": 1, "output_length": 1}',
            "line 3, column timestamp, value '\"x\"': must be a finite number",
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
        (
            NATIVE.replace("\n", "\r"),
            "line 1: the header cannot be split into columns; check its li",
        ),
        (b"\x89PNG\r\n\x1a\n\0\0", "line 1: this is not UTF-8 text; give a CSV or JSONL trace"),
        (b"P\0K\3\4\n1,2\n", "line 1: this is not UTF-8 text; give a CSV or JSONL trace"),
        ('{"prompts": [1], "outputs": [2]}', "trace.csv: .*the key 'memory' is missing"),
        ('{"prompts": [1], "outputs": [2], "memory": 2}', "trace.csv: request 0: prompts 1"),
        ('{"prompts": [1], "outputs": [2], "memory": 9, "labels": 3}', "trace.csv: the JSON text"),
        ('{"prompts": [[1], 2], "outputs": [2], "memory": 9}', "trace.csv: prompts must be a list"),
        (b'{"prompts": "\xff"', "trace.csv is not UTF-8 text; give an instance as JSON"),
        ('{"prompts": ', "trace.csv: the JSON text is not valid JSON"),
    ],
)
def test_bad_content_is_refused_in_one_sentence(trace, content, message):
    path = trace(content)
    memory = 2000 if content[:4] in (AZURE[:4], BURST[:4]) else 100
    memory = 10_000 if str(content).startswith(MOONCAKE[:20]) else memory
    with pytest.raises(InstanceError, match=message) as caught:
        read_trace(path, memory)
    assert str(caught.value).startswith(str(path))
    assert str(caught.value).count("\n") == 0


def test_errors_carry_column_request_value_and_reason(trace):
    with pytest.raises(InstanceError) as caught:
        read_trace(trace(NATIVE + "7,0\n"), 100)
    error = caught.value
    assert (error.column, error.request, error.value) == ("output_tokens", 2, "0")
    assert error.reason == "outputs is 0, but every request makes at least 1 token"


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


@pytest.mark.parametrize("content", [NATIVE, TIMED, BURST, MOONCAKE])
def test_pipes_are_read_once(tmp_path, trace, content):
    def through_a_pipe(text):
        pipe = tmp_path / "pipe"
        pipe.unlink(missing_ok=True)
        os.mkfifo(pipe)
        writer = threading.Thread(target=pipe.write_text, args=(text,))
        writer.start()
        try:
            return read_trace(pipe, 16_492)
        finally:
            writer.join()

    assert through_a_pipe(content) == read_trace(trace(content), 16_492).replace(name="pipe")
    with pytest.raises(InstanceError, match="a pipe cannot be read again to name it; save the tr"):
        through_a_pipe(content + "1\n")


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
        ({"memory": None}, "trace.csv does not say how much the worker holds; give the memory"),
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
    with pytest.raises(InstanceError, match=message):
        read_trace(trace(NATIVE), **({"memory": 100} | arguments))


def test_json_instances_keep_everything_and_memory_overrides(tmp_path):
    instance = Instance([1, 2], [3, 4], 10, [0, 3], labels=["a", "b"], name="small")
    instance.to_json(tmp_path / "instance.json")
    assert read_trace(tmp_path / "instance.json") == instance
    assert read_trace(tmp_path / "instance.json", 20) == instance.replace(memory=20)
    assert read_trace(tmp_path / "instance.json", limit=1).labels == ("a",)
    with pytest.raises(InstanceError, match=r"instance.json: request 1 \('b'\): .* holds 5"):
        read_trace(tmp_path / "instance.json", 5)
    pretty = json.dumps(json.loads(instance.to_json()), indent=1)
    (tmp_path / "pretty.json").write_text(pretty)
    assert read_trace(tmp_path / "pretty.json") == instance


def test_limit_reads_nothing_behind_it(trace):
    path = trace(NATIVE + "7,0\n1,1,1\n", "longer.csv")
    first = read_trace(trace(NATIVE), 100)
    assert read_trace(path, 100, limit=2) == first.replace(name="longer")
    assert read_trace(trace(NATIVE), 100, limit=50) == first
    with pytest.raises(InstanceError, match="line 4"):
        read_trace(path, 100, limit=3)
    packed = gzip.compress((NATIVE + "8,8\n" * 9_000_000).encode(), compresslevel=1)
    damaged = trace(packed[:-100], "trace.csv.gz")
    assert read_trace(damaged, 100, limit=2) == first
    mooncake = trace(MOONCAKE + "[]\n")
    assert len(read_trace(mooncake, 10_000, limit=2)) == 2
    assert len(read_trace(mooncake, 10_000, limit=1)) == 1


MANY_FAULTS = (
    "arrival,prompt_tokens,output_tokens\n"
    "0,1,1\n"
    "9999,1,0\n"  # line 3; its arrival does not make the later rows late
    "2,2,2,2\n"
    "\n"
    "2,x,2\n"  # line 6
    "5,5,5\n"
    "4,4,4\n"  # line 8
    "5,6,6\n"
)


def test_skipping_leaves_out_and_lists_every_row_at_fault(trace):
    path = trace(MANY_FAULTS)
    instance, skipped = read_trace_skipping(path, 100)
    assert instance == Instance([1, 5, 6], [1, 5, 6], 100, [0, 5, 5], name="trace")
    assert skipped == [
        SkippedRow(
            3, "output_tokens", "0", "outputs is 0, but every request makes at least 1 token"
        ),
        SkippedRow(4, None, "", "the row has 4 cells, but the header has 3"),
        SkippedRow(6, "prompt_tokens", "x", "must be a whole number"),
        SkippedRow(
            8,
            "arrival",
            "4",
            "arrivals is 4, earlier than a request before it; sort the requests by arrival",
        ),
    ]
    with pytest.warns(UserWarning, match="left 4 rows out, the first for line 3, column output"):
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
    monkeypatch.setattr(files, "BLOCK", 997)
    monkeypatch.setattr(files, "RECORDS", 13)
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


@given(instance=instances(), data=st.data())
def test_csv_round_trip(tmp_path_factory, instance, data):
    count = len(instance)
    positive = st.floats(1e-9, 1e9)
    label = st.text(
        st.characters(exclude_characters="\r\n", codec="utf-8", exclude_categories=["Cc"])
    )
    changes = {
        "weights": st.lists(positive, min_size=count, max_size=count),
        "deadlines": st.lists(st.integers(1, 10**9), min_size=count, max_size=count),
        "labels": st.lists(label, min_size=count, max_size=count),
        "output_lower": st.just(np.maximum(instance.outputs - 1, 1)),
        "output_upper": st.just(instance.outputs + 2),
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(changes))))
    instance = instance.replace(**{name: data.draw(changes[name]) for name in sorted(chosen)})
    path = tmp_path_factory.mktemp("csv") / "instance.csv"
    instance.to_csv(path)
    assert read_trace(path, instance.memory) == instance
    json_path = path.with_suffix(".json")
    instance.to_json(json_path)
    assert read_trace(json_path) == instance


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


def test_ragged_rows_with_stray_bytes_are_named(trace):
    path = trace(NATIVE.encode() + b"1,\xff,1\n\xfe,1\n")
    assert [str(row) for row in read_trace_skipping(path, 100)[1]] == [
        "line 4: the row has 3 cells, but the header has 2",
        r"line 5, column prompt_tokens, value '\\xfe': must be a whole number",
    ]


def test_steps_too_short_for_a_number_are_beyond_the_last_one():
    """Numpy warned of the overflow on standard error."""
    assert to_steps(np.array([0.0, 1.0]), 0, 1, 1e-320).tolist()[1] > MAX_STEP


@given(
    seconds=st.decimals(0, 10**6, places=6),
    step=st.sampled_from(["0.05", "0.1", "0.02", "0.001", "0.03", "1", "0.7"]),
)
def test_steps_are_the_exact_quotients_rounded_up(seconds, step):
    expected = math.ceil(Decimal(seconds) / Decimal(step))
    assert to_steps(np.array([float(seconds)]), 0, 1, float(step)).tolist() == [expected]
    milliseconds = np.array([int(seconds * 1000)])
    expected = math.ceil(Decimal(int(milliseconds[0])) / 1000 / Decimal(step))
    assert to_steps(milliseconds, 0, 1000, float(step)).tolist() == [expected]


@given(start=st.decimals(10**6, 10**8, places=3), gap=st.decimals(0, 10**4, places=3))
def test_steps_after_a_late_start_do_not_carry_its_rounding(start, gap):
    times = np.array([float(start), float(start + gap)])
    expected = math.ceil(gap / Decimal("0.05"))
    assert to_steps(times, times[0], 1, 0.05).tolist() == [0, expected]


def test_real_traces_are_read_whole(shared_data):
    rows = {"azure_conv_2023": 15_492, "azure_code_2023": 7_055, "mixed_2000": 2_000}
    for name, count in rows.items():
        path = shared_data / f"{name}.csv.gz"
        instance = read_trace(path, 16_492)
        assert len(instance) == count
        with gzip.open(path, "rt") as stream:
            table = list(csv.DictReader(stream))
        assert instance.prompts.tolist() == [int(row["prompt_tokens"]) for row in table]
        assert instance.outputs.tolist() == [int(row["output_tokens"]) for row in table]
        if "arrival_s" in table[0]:
            exact = [math.ceil(Decimal(row["arrival_s"]) / Decimal("0.05")) for row in table]
            assert instance.arrivals.tolist() == exact


def test_importing_optsched_does_not_import_pyarrow():
    import subprocess
    import sys

    code = "import optsched, sys; optsched.read_trace; print('pyarrow' in sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "False"


@pytest.mark.parametrize("content", [TIMED, AZURE, BURST_SESSIONS, VIDUR_LENGTHS, MOONCAKE])
def test_slow_and_fast_readers_agree(trace, monkeypatch, content):
    path = trace(content)
    fast = read_trace(path, 16_492)

    def irregular(stream, header):
        raise files.IrregularError
        yield

    monkeypatch.setattr("optsched.workloads.trace.csv_batches", irregular)
    monkeypatch.setattr("optsched.workloads.trace.jsonl_batches", irregular)
    assert read_trace(path, 16_492) == fast
