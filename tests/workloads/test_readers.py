"""Reading traces: every format, whole or to a limit, from files and pipes."""

import csv
import gzip
import json
import math
import os
import re
import threading
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import trace_samples as samples
from effort import examples
from fresh import imports
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances
from tabled import tabled
from trace_samples import AIPERF, BURST, DYNAMO, MOONCAKE, NATIVE, QWEN, TIMED, TRACELAB, lines

from optsched import Instance, read_trace
from optsched._internal.arrays import MAX_STEP
from optsched.errors import InstanceError
from optsched.workloads import formats, read_trace_skipping


@pytest.mark.parametrize(
    ("content", "prompts", "outputs", "arrivals"),
    [
        (NATIVE, [3, 5], [4, 6], [0, 0]),
        (TIMED, [3, 5], [4, 6], [0, 10]),
        (samples.AZURE, [374, 396], [44, 109], [0, 87]),  # 4.314579 s
        (samples.AZURE_2024, [12, 13], [5, 6], [0, 10]),
        (BURST, [472, 1087], [18, 230], [0, 800]),
        (samples.BURST_SESSIONS, [472, 1087], [18, 230], [0, 800]),
        (samples.VIDUR, [374, 396], [44, 109], [0, 118]),
        (samples.VIDUR_LENGTHS, [374], [44], [0]),
        (MOONCAKE, [6955, 6472], [52, 26], [0, 62]),  # 3053 ms
        (QWEN, [521, 40], [132, 8], [0, 1223]),  # 61.114 s
        (samples.AZURE_IMAGES, [120, 3313], [5, 60], [0, 10]),
        (DYNAMO, [64, 100], [7, 7], [0, 30]),
        (AIPERF, [550, 560], [12, 9], [0, 10]),
        (TRACELAB, [3000, 3000, 3100], [40, 40, 41], [0, 10, 610]),
        ("\n" + MOONCAKE.replace(', "hash_ids": [46, 47]', ""), [6955, 6472], [52, 26], [0, 62]),
    ],
)
def test_every_format_is_recognised_by_its_content(trace, content, prompts, outputs, arrivals):
    for path in (trace(content, "x"), trace(gzip.compress(content.encode()), "x.gz")):
        instance = read_trace(path, 16_492)
        assert instance.prompts.tolist() == prompts
        assert instance.outputs.tolist() == outputs
        assert instance.arrivals.tolist() == arrivals
        assert instance.name == "x"
        assert (instance.seconds_per_step is None) == (content in (NATIVE, samples.VIDUR_LENGTHS))


def test_all_native_columns_become_fields(trace):
    path = trace(
        "label,deadline,weight,output_upper,output_lower,arrival,output_tokens,prompt_tokens,"
        'output_estimate\n"a, ""b""",50,0.5,9,1,0,4,0,7\nc,60,2,4,4,7,4,3,1\n'
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
        output_estimates=[7, 1],
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


def test_ids_of_equal_blocks_are_kept(trace):
    ids = [[46, 47, 48], [46, 47], [46]]
    rows = [{"timestamp": t, "input_length": 1100, "output_length": 5} for t in range(3)]
    rows = [row | {"hash_ids": each} for row, each in zip(rows, ids, strict=True)]
    del rows[2]["hash_ids"]
    mooncake = read_trace(trace(lines(*rows), "x.jsonl"), 10_000)
    assert [each.tolist() for each in mooncake.hash_ids] == [*ids[:2], []]
    assert mooncake.hash_block == 512
    assert mooncake.take([1]).hash_ids[0].tolist() == ids[1]
    qwen = read_trace(trace(QWEN, "x.jsonl"), 10_000)
    assert qwen.hash_block == 16
    rows[1]["hash_ids"] = [46, 4.5]
    with pytest.raises(
        InstanceError, match=r"line 2, column hash_ids, value '\[46, 4.5\]': must be"
    ):
        read_trace(trace(lines(*rows), "x.jsonl"), 10_000)


def test_tenants_conversations_and_turns_are_kept(trace):
    third = json.loads(QWEN.splitlines()[1]) | {"chat_id": 9, "parent_chat_id": 8, "turn": 3}
    more = QWEN + lines(third, third | {"chat_id": 10, "parent_chat_id": 55})
    for content, labels, clients in (
        (more, ["text/7/1", "file/7/2", "file/7/3", "file/55/3"], [0, 0, 0, 1]),
        (DYNAMO, ["small/s1/r1", "small/s1/r2"], [0, 0]),
        (AIPERF, ["u/0", "u/1"], [0, 0]),
        (TRACELAB, ["claude/claude:a/0", "claude/codex:b/0", "claude/claude:a/1"], [0, 1, 0]),
        (MOONCAKE.replace('{"t', '{"session_id": "z", "t'), ["z", "z"], [0, 0]),
    ):  # fmt: skip
        found = read_trace(trace(content, "x.jsonl"), 10_000)
        assert found.labels == tuple(labels)
        assert found.clients.tolist() == clients
    assert read_trace(trace(MOONCAKE, "x.jsonl"), 10_000).labels is None


def test_hashes_of_64_bits_stay_apart_and_sizes_of_blocks_are_one(trace):
    dynamo = read_trace(trace(DYNAMO, "x.jsonl"), 10_000)
    assert dynamo.hash_block == 64
    assert [ids.tolist() for ids in dynamo.hash_ids] == [[-1], [-1, 5]]
    assert Instance.from_json(dynamo.to_json()) == dynamo
    mixed = DYNAMO.replace('"trace_block_size": 64', '"trace_block_size": 16', 1)
    with pytest.raises(InstanceError, match="blocks of 16 and 64 tokens; split it by"):
        read_trace(trace(mixed, "x.jsonl"), 10_000)
    without = lines(*({**json.loads(each)} for each in DYNAMO.splitlines()))
    without = re.sub(r', "replay": {[^}]*}', "", without).replace(
        '"cached_tokens": 16', '"input_tokens": 60', 1
    )
    plain = read_trace(trace(without, "x.jsonl"), 10_000)
    assert plain.hash_ids is None
    assert plain.prompts.tolist() == [64, 60]


def test_rows_that_are_no_requests_are_named(trace):
    broken = AIPERF + lines({"metadata": json.loads(AIPERF.splitlines()[0])["metadata"],
                             "metrics": {}, "error": None})  # fmt: skip
    with pytest.raises(InstanceError, match=r"line 3, column metrics.input_sequence_length.value"):
        read_trace(trace(broken, "x.jsonl"), 10_000)
    kept, skipped = read_trace_skipping(trace(broken, "x.jsonl"), 10_000)
    assert (kept.labels, len(skipped)) == (("u/0", "u/1"), 1)


@pytest.mark.parametrize("written", ["lines", "CSV"])
def test_requests_that_name_no_client_are_one_client(trace, written):
    """As the plugin records them, where some requests name a client and others do not."""
    hashed = 2**47 + 5
    rows = [{"prompt_tokens": 5, "output_tokens": 2, "arrival_s": at} for at in range(4)]
    rows[1]["client"], rows[2]["client"] = hashed, 7
    text = lines(*rows)
    if written == "CSV":
        text = "prompt_tokens,output_tokens,arrival_s,client\n" + "".join(
            f"5,2,{at},{row.get('client', '')}\n" for at, row in enumerate(rows)
        )
    found = read_trace(trace(text, "x.log"), 100)
    assert found.clients.tolist() == [hashed + 1, hashed, 7, hashed + 1]
    spend = [json.loads(line) for line in lines(*rows).splitlines()]
    for row, user in zip(spend, ("", "a", "b", ""), strict=True):
        row["user"] = user
        row.pop("client", None)
    columns = "prompt=prompt_tokens,output=output_tokens,arrival=arrival_s,client=user"
    assert read_trace(trace(lines(*spend), "x.log"), 100, columns=columns).clients.tolist() == [
        *(0, 1, 2, 0)
    ]


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
        "output_estimates": st.lists(st.integers(1, 10**6), min_size=count, max_size=count),
        "clients": st.lists(st.integers(0, 9), min_size=count, max_size=count),
        "priorities": st.lists(st.integers(-9, 9), min_size=count, max_size=count),
        "hash_ids": st.lists(
            st.lists(st.integers(-(2**63), 2**63 - 1), max_size=1), min_size=count, max_size=count
        ),
        "follows": st.tuples(*(st.integers(-1, at - 1) for at in range(count))),
        "seconds_per_step": st.sampled_from([0.05, 0.1, 1.0]),
    }
    chosen = data.draw(st.sets(st.sampled_from(sorted(changes))))
    changed = {name: data.draw(changes[name]) for name in sorted(chosen)}
    if "hash_ids" in changed:
        changed["hash_block"] = data.draw(st.integers(1, 512))
    if "follows" in changed and data.draw(st.booleans()):
        changed["pauses"] = [3] * count
    instance = instance.replace(**changed)
    path = tmp_path_factory.mktemp("csv") / "instance.csv"
    instance.to_csv(path)
    step = instance.seconds_per_step or 0.05
    assert read_trace(path, instance.memory, seconds_per_step=step) == instance
    assert Instance.from_pandas(instance.to_pandas(), instance.memory, "instance") == instance
    json_path = path.with_suffix(".json")
    instance.to_json(json_path)
    assert read_trace(json_path) == instance


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


@pytest.mark.slow
def test_reading_a_trace_loads_neither_pandas_nor_pyarrow(trace):
    code = f"import optsched; optsched.read_trace({str(trace(TIMED))!r}, 100)"
    assert not imports(code, "pandas", "pyarrow")


RAGGED = "1,2,3\n4\n"  # as many cells as two good rows


@pytest.mark.parametrize(
    ("last", "words"),
    [("x,1\n", "must be a whole number"), ("1,2,3\n", "the row has 3 cells"), ("1,2\n", "")],
)
@pytest.mark.parametrize("more", ["", "1.0,1\n", "9,1e1\n", "+5, 6 \n", RAGGED])
def test_blocks_of_plain_cells_give_what_single_cells_give(trace, monkeypatch, last, words, more):
    rows = "".join(f"{i}, {i + 1}\n\n" for i in range(500))
    path = trace("prompt_tokens,output_tokens\n" + rows + last + more + "7,1e1\n")
    cell_by_cell = read_trace_skipping(path, 2000)
    monkeypatch.setattr(formats, "BYTES", 100)
    monkeypatch.setattr(formats, "LARGE", 0)
    fast, skipped = read_trace_skipping(path, 2000)
    ragged = [1003, 1004] if more == RAGGED else []
    assert [row.line for row in skipped] == ([1002] if words else []) + ragged
    assert not words or words in skipped[0].reason
    assert len(read_trace_skipping(path, 2000, limit=321)[0]) == 321
    assert cell_by_cell == (fast, skipped)
    assert fast.prompts[-1] == 7


DIGITS = st.text("0123456789", min_size=1, max_size=9)
DATES = st.builds(
    "{:04}-{:02}-{:02}{}{:02}:{:02}:{:02}{}{}".format,
    *(st.integers(low, high) for low, high in ((1890, 2110), (1, 12), (1, 30))),
    st.sampled_from(" T"),
    *(st.integers(0, high) for high in (23, 59, 60)),
    st.just("") | DIGITS.map(".{}".format),
    st.sampled_from(["", "Z", "+00:00", "+01:00"]),
)


@examples(300)
@given(st.data(), DATES)
def test_dates_alike_are_what_each_of_them_is(data, first):
    cells = [first]
    for _ in range(data.draw(st.integers(0, 3))):
        cells.append("".join(
            data.draw(st.sampled_from("0123456789")) if sign.isdigit() else sign for sign in first
        ))  # fmt: skip
    place = data.draw(st.integers(0, len(first)))
    end = place + data.draw(st.integers(0, 1))
    stray = data.draw(st.sampled_from(["", *"0:-+. TZe"]))
    cells[-1] = cells[-1][:place] + stray + cells[-1][end:]
    try:
        found = formats.stamps(np.array(cells, dtype=formats.DATE))
    except ValueError:
        return  # they are read one by one
    assert found.tolist() == formats.STAMP.read(cells).tolist()


def test_numbers_and_dates_of_a_large_file_are_exact(trace, monkeypatch):
    monkeypatch.setattr(formats, "LARGE", 0)
    numbers = [f"{7.0 * i / 11:.{i % 15}f}" for i in range(300)]
    rows = "".join(f"1,1,{each}\n" for each in numbers)
    path = trace("prompt_tokens,output_tokens,arrival_s\n" + rows)
    read = read_trace(path, 9, seconds_per_step=1e-9).arrivals.tolist()
    exact = [math.ceil(Decimal(each) * 10**9) for each in sorted(numbers, key=Decimal)]
    assert max(abs(a - b) for a, b in zip(read, exact, strict=True)) <= 1
    days = "".join(f"2024-02-29 23:59:{i % 60:02}.{i:07},1,1\n" for i in range(59))
    path = trace("TIMESTAMP,ContextTokens,GeneratedTokens\n" + days)
    fast = read_trace(path, 9)
    monkeypatch.setattr(formats, "csv_columns", lambda *_: int("no number"))
    assert read_trace(path, 9) == fast


@pytest.mark.parametrize("place", [0, 1, 2])
def test_keys_of_all_lines_count_whichever_lacks_one(trace, place):
    rows = [
        {"timestamp": 100 * at, "input_length": 1100, "output_length": 5, "session_id": f"s{at}"}
        | {"hash_ids": [7, 8 + at]}
        for at in range(3)
    ]
    whole = read_trace(trace(lines(*rows), "x.jsonl"), 10_000)
    for key, fields in (("hash_ids", ["hash_ids"]), ("session_id", ["labels"])):
        less = [{k: v for k, v in row.items() if (k, at) != (key, place)}
                for at, row in enumerate(rows)]  # fmt: skip
        found = read_trace(trace(lines(*less), "x.jsonl"), 10_000)
        for field in fields:
            for at, (mine, its) in enumerate(
                zip(getattr(found, field), getattr(whole, field), strict=True)
            ):
                assert np.array_equal(mine, its) == (at != place)
        without = [{k: v for k, v in row.items() if k != key} for row in rows]
        none = read_trace(trace(lines(*without), "x.jsonl"), 10_000)
        assert all(getattr(none, field) is None for field in fields)
    odd = [row | {"priority": 3} if at == place else row for at, row in enumerate(rows)]
    for read in (read_trace, read_trace_skipping):
        notes = []
        read(trace(lines(*odd), "x.jsonl"), 10_000, note=notes.append)
        assert len(notes) == 1
        assert notes[0].endswith("; not read: priority")
    del rows[place]["output_length"]
    kept, skipped = read_trace_skipping(trace(lines(*rows), "x.jsonl"), 10_000)
    assert (len(kept), [row.line for row in skipped]) == (2, [place + 1])


@pytest.mark.parametrize("size", ['"abc"', '"16"', "-3", "1.5", "9" * 5000, "true", "[16]"])
def test_a_size_of_blocks_that_is_none_is_a_row_at_fault(trace, size):
    odd = DYNAMO.replace('"trace_block_size": 64', f'"trace_block_size": {size}', 1)
    said = r"line 2, column request.replay.trace_block_size, value .*: must be a whole number of"
    if len(size) > 4000:  # beyond Python's limit for integers
        said = "line 2: the line holds no JSON object"
    with pytest.raises(InstanceError, match=said):
        read_trace(trace(odd, "x.jsonl"), 10_000)


def test_tables_and_files_carry_everything(tmp_path):
    plain = Instance(
        [4, 4], [4, 4], 20, [0, 3], labels=["b", "b"], clients=[1, 0], seconds_per_step=0.1
    )
    plain.to_csv(tmp_path / "instance.csv")
    assert read_trace(tmp_path / "instance.csv", 20, seconds_per_step=0.1) == plain
    assert read_trace(tmp_path / "instance.csv", 20).arrivals.tolist() == [0, 6]
    at_once = plain.replace(arrivals=[0, 0])
    at_once.to_csv(tmp_path / "instance.csv")
    assert read_trace(tmp_path / "instance.csv", 20, seconds_per_step=0.1) == at_once
    shared = plain.replace(hash_ids=[[1, 2], [1, 3]], hash_block=4)
    for each in (plain, shared, shared.replace(hash_ids=[[1], [2, 3]]),
                 shared.replace(follows=[-1, 0], pauses=[0, 2])):  # fmt: skip
        assert Instance.from_pandas(each.to_pandas(), 20) == each
        each.to_csv(tmp_path / "instance.csv")
        assert read_trace(tmp_path / "instance.csv", 20, seconds_per_step=0.1) == each


@tabled()
def test_hints_on_columns_never_take_prompts_for_outputs(trace, meant, names):
    others = {"prompt_tokens", "output_tokens"} - {meant}
    table = pd.DataFrame({name: [1] for name in others})
    for name in names.split():
        header = ",".join([*others, name])
        with pytest.raises(InstanceError, match=f"unknown column '{name}'; name it {meant}"):
            read_trace(trace(f"{header}\n{','.join('1' * (1 + len(others)))}\n"), 100)
        if meant != "arrival_s":
            with pytest.raises(InstanceError, match=f"column '{name}' is none .*; name it {meant}"):
                Instance.from_pandas(table.assign(**{name: [1]}), 100)
    # What is there already is no proposal.
    with pytest.raises(
        InstanceError, match=r"unknown column 'total_tokens'; .*leave it out$"
    ) as no:
        read_trace(trace("prompt_tokens,output_tokens,total_tokens\n1,1,2\n"), 100)
    assert "prompt_tokens" not in str(no.value)
    assert "did you mean" not in str(no.value)


@pytest.mark.parametrize(
    ("columns", "rows", "deadlines"),
    [
        ("arrival_s,deadline_s", ["0,1.1", "0.3,", "1.1,1.3"], [11, MAX_STEP, 13]),
        ("arrival_s,deadline_s", ["1700000000.5,1700000001.56", "1700000001,1700000003"], [10, 25]),
        ("sent_ms,due_s", ["500,1.56", "1000,3"], [10, 25]),
        ("sent,due", ["2026-01-01 00:00:00.5,2026-01-01 00:00:01.56"], [10]),
    ],
)
def test_due_dates_are_times_by_the_clock_of_arrivals(tmp_path, columns, rows, deadlines):
    """A request is in time if the step in which it completes ends in time."""
    path = tmp_path / "trace.csv"
    path.write_text("\n".join([f"input,output,{columns}", *(f"3,2,{row}" for row in rows)]) + "\n")
    sent, due = columns.split(",")
    named = f"prompt=input,output=output,arrival={sent},due={due}"
    found = read_trace(path, 100, seconds_per_step=0.1, columns=named)
    assert found.deadlines.tolist() == deadlines


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("deadline_s", "1.1", "is a time, but arrivals are not; name their column arrival_s, or"),
        ("arrival,deadline_s", "1,1.1", "is a time, but arrivals are not"),
        ("arrival_s,deadline,deadline_s", "1,30,3", "keep one of them"),
        ("arrival_s,deadline_s", "3,-2", "column deadline_s, value '-2': steps count from 1"),
        ("arrival_s,deadline_s", "3,soon", "must be a finite number, or empty"),
    ],
)
def test_due_dates_that_cannot_be_are_refused(tmp_path, header, row, said):
    path = tmp_path / "trace.csv"
    path.write_text(f"prompt_tokens,output_tokens,{header}\n3,2,{row}\n")
    with pytest.raises(InstanceError, match=said):
        read_trace(path, 100, seconds_per_step=0.1)
