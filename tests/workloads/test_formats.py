"""Logs in published formats, made here: each is read rightly, by its names or by --columns."""

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path

import log_formats as logs
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_formats import AIBRIX, BLIS, LITELLM, LOGS, NAN, OWN, PROMPTS, SECONDS, TTFT, VLLM, table
from tabled import tabled
from trace_samples import lines

from optsched import read_trace
from optsched.errors import InstanceError
from optsched.workloads import read_measured, read_trace_skipping
from optsched.workloads.formats import FORMATS


@pytest.mark.parametrize("name", LOGS)
def test_every_format_is_read_rightly(trace, name):
    content, columns, measured = LOGS[name]
    path = trace(content, "log")
    notes = []
    instance = read_trace(path, 1000, columns=columns or None, note=notes.append)
    assert instance.prompts.tolist() == PROMPTS
    assert instance.outputs.tolist() == logs.OUTPUTS
    assert instance.arrivals.tolist() == [0, 10, 40]
    assert "sorted by arrival, as 1 requests stood behind later ones" in notes[0]
    if measured:
        again, times = read_measured(path, 1000, columns=columns or None)
        assert again == instance
        for values, expected in zip(times, (SECONDS, TTFT, logs.LATENCY), strict=True):
            assert np.allclose(values, expected, atol=1e-6)
    else:
        with pytest.raises(InstanceError, match="log has no times of tokens, only requests"):
            read_measured(path, 1000, columns=columns or None)


def test_the_docs_list_every_format_and_the_tests_read_it():
    page = (Path(__file__).parents[2] / "docs/how-to/trace.md").read_text(encoding="utf-8")
    listed = page.partition("## Logs of other tools")[2]
    for form in FORMATS[1:]:
        name = form.name.removeprefix("Qwen ").split()[0]
        assert name in listed
        assert any(each.startswith(name) for each in LOGS), name


def test_clients_priorities_and_conversations_are_kept(trace):
    found = read_trace(trace(table(BLIS), "blis.csv"), 1000)
    assert found.clients.tolist() == [0, 1, 0]
    assert found.priorities.tolist() == [9, 8, 7]
    assert read_trace(trace(json.dumps(LITELLM), "log"), 1000).clients.tolist() == [0, 1, 0]
    chats = read_trace(trace(lines(*AIBRIX), "log"), 1000)
    assert chats.labels == ("s", "s", "u")
    assert chats.clients.tolist() == [0, 0, 1]
    mapping = {"prompt": "tokens_in", "output": "gen", "client": "who", "label": "who"}
    own = read_trace(trace(json.dumps(OWN), "log"), 1000, columns=mapping)
    assert own.labels == ("q", "p", "p")  # without arrivals, as they stand
    assert not own.arrivals.any()


def test_the_note_says_what_is_read_and_names_all_that_is_not(trace):
    notes = []
    read_trace(trace(json.dumps(VLLM), "x.json"), 1000, note=notes.append)
    assert notes == [
        "read as vllm bench: input_lens -> prompt_tokens, output_lens -> output_tokens, "
        "start_times (s) -> arrival_s; not read: ttfts, itls, generated_texts; "
        "sorted by arrival, as 1 requests stood behind later ones"
    ]
    plain = "prompt_tokens,output_tokens\n3,4\n"
    for content, said in (
        (plain, []),
        (plain.replace("\n", ",model\n"), ["not read: model"]),
        (lines(*logs.MOONCAKE).replace("delay", "x.y"), ["; not read: x.y; sorted"]),
    ):
        notes.clear()
        read_trace(trace(content), 1000, note=notes.append)
        assert len(notes) == len(said)
        assert all(words in note for words, note in zip(said, notes, strict=True))


def zipped(content):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("log.csv", content)
    return archive.getvalue()


def zst(content):
    return pa.Codec("zstd").compress(content, asbytes=True)


PACKED = {".gz": gzip.compress, ".xz": lzma.compress, ".bz2": bz2.compress, ".zip": zipped,
          ".zst": zst}  # fmt: skip


@pytest.mark.parametrize("ending", PACKED)
def test_packed_files_are_read_and_damaged_ones_refused(trace, ending):
    many = [record for _ in range(300) for record in LITELLM]
    for content, name in (
        (table(many), "log.csv"),
        (lines(*many), "log.jsonl"),
        (json.dumps(many), "log"),
    ):
        whole = read_trace(trace(content, name), 1000)
        packed = PACKED[ending](content.encode())
        assert read_trace(trace(packed, name + ending), 1000) == whole
        assert read_trace(trace(packed, "anything"), 1000).replace(name="log") == whole
    for damage in (packed[:-12], packed[: len(packed) // 2], packed[:40] + b"\0\1\2" + packed[43:]):
        with pytest.raises(InstanceError, match=r"x is a damaged or truncated .* file.*; fetch it"):
            read_trace(trace(damage, "x"), 1000)
    with pytest.raises(InstanceError, match=r"is not packed with .*; rename it or pack it"):
        read_trace(trace("a,b\n", f"x{ending}"), 1000)


def test_archives_of_several_files_are_refused(trace):
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.csv", "1")
        file.writestr("b.csv", "2")
    with pytest.raises(InstanceError, match=r"x\.zip: the archive holds 2 files; keep that with"):
        read_trace(trace(archive.getvalue(), "x.zip"), 1000)


def test_parquet_is_read_with_lists_dates_and_gaps(tmp_path, trace):
    frame = pd.DataFrame(LITELLM)
    for column in ("startTime", "completionStartTime", "endTime"):
        frame[column] = pd.to_datetime(frame[column], format="ISO8601")
    frame.loc[0, "endTime"] = pd.NaT
    frame.to_parquet(tmp_path / "log.parquet")
    instance, times = read_measured(tmp_path / "log.parquet", 1000)
    assert instance == read_trace(trace(json.dumps(LITELLM), "log"), 1000)
    assert np.allclose(times.latency, [0.75, NAN, 1.5], equal_nan=True)
    shared = instance.replace(hash_ids=[[1], [2, 3], []], hash_block=16, clients=None)
    shared.to_pandas().assign(hash_block=16).to_parquet(tmp_path / "own.parquet")
    own = read_trace(tmp_path / "own.parquet", 1000)
    assert own == shared.replace(name="own", seconds_per_step=None)
    whole = (tmp_path / "log.parquet").read_bytes()
    with pytest.raises(InstanceError, match=r"x is a damaged or truncated parquet file; fetch it"):
        read_trace(trace(whole[: len(whole) // 2], "x"), 1000)


@pytest.mark.parametrize(("unit", "parts"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_units_are_known_by_names_or_passed(trace, unit, parts):
    content = "a,b,t\n5,6,{}\n7,8,{}\n".format(
        *(int(2.5 * k * 10**9) // (10**9 // parts) for k in (2, 4))
    )
    mapping = {"prompt": "a", "output": "b", "arrival": "t"}
    path = trace(content)
    said = (
        r"the unit of column t, with values such as \d+, is not known; pass --time-unit s, ms, us"
    )
    with pytest.raises(InstanceError, match=said):
        read_trace(path, 99, columns=mapping)
    expected = [0, 100]
    assert read_trace(path, 99, columns=mapping, time_unit=unit).arrivals.tolist() == expected
    named = trace(content.replace("t", f"t_{unit}"))
    mapping["arrival"] = f"t_{unit}"
    assert read_trace(named, 99, columns=mapping).arrivals.tolist() == expected


def test_steps_and_dates_and_parts_of_milliseconds(trace):
    mapping = {"prompt": "a", "output": "b", "arrival": "t"}
    path = trace("a,b,t\n5,6,3\n7,8,9\n")
    steps = read_trace(path, 99, columns=mapping, time_unit="steps")
    assert steps.arrivals.tolist() == [3, 9]
    assert steps.seconds_per_step is None
    dated = trace("a,b,t\n5,6,2026-01-01T00:00:00+02:00\n7,8,2025-12-31 22:00:05\n")
    assert read_trace(dated, 99, columns=mapping).arrivals.tolist() == [0, 100]
    mooncake = '{"timestamp": %s, "input_length": 5, "output_length": 6}\n'
    path = trace(mooncake % 27482.5 + mooncake % 28482.5, "x.jsonl")
    with pytest.raises(InstanceError, match=r"'27482\.5': must be a whole number of ms, or pass"):
        read_trace(path, 99)
    assert read_trace(path, 99, time_unit="ms").arrivals.tolist() == [0, 20]
    assert read_trace(path, 99, time_unit="s").arrivals.tolist() == [0, 20_000]
    path = trace((mooncake % '"2026-01-01"') + (mooncake % '"2026-01-02"'), "x.jsonl")
    assert read_trace(path, 99, seconds_per_step=60.0).arrivals.tolist() == [0, 1440]
    with pytest.raises(InstanceError, match="--time-unit ms is that of arrivals, but there are"):
        read_trace(trace("prompt_tokens,output_tokens\n1,2\n"), 99, time_unit="ms")


def test_prefixes_need_the_size_of_a_block(trace):
    content = lines({"i": 40, "o": 2, "ids": [4, 5]}, {"i": 40, "o": 2, "ids": [4]})
    mapping = {"prompt": "i", "output": "o", "prefix": "ids"}
    with pytest.raises(InstanceError, match="ids of blocks, but not how many tokens a block has"):
        read_trace(trace(content), 99, columns=mapping)
    found = read_trace(trace(content), 99, columns=mapping | {"block": "16"})
    assert found.hash_block == 16
    assert [each.tolist() for each in found.hash_ids] == [[4, 5], [4]]


GOOD = '{"input_toks": 5, "output_toks": 2, "arrival_time_ns": 7}\n'
LISTS = '{"input_lens": [5, 6], "output_lens": [2, 3], "start_times": [1.5, 2]}'
MAP = {"prompt": "a", "output": "b", "arrival": "t_s"}


@tabled(
    (json.dumps(OWN)[:-9], {}, "line 1: the line holds no JSON object, nor does the file as a"),
    (json.dumps(VLLM, indent=2)[:-9], {}, "line 1: the line holds no JSON object, nor does"),
    (
        json.dumps(logs.GUIDELLM).replace('"output_tokens": 2', '"output_tokens": null'),
        {},
        "entry 3, column output_tokens, value '': must be a whole number",
    ),
    (
        table(LITELLM).replace("2026-", "26-", 1),
        {},
        "column startTime, value '26-.*': must be a date",
    ),
    (
        table(BLIS).replace(",ok\n", ",o,k\n", 1),
        {},
        "line 2: the row has 13 cells, but the header has 12",
    ),
)
def test_damaged_logs_are_refused_in_one_sentence(trace, content, columns, message):
    path = trace(content, "log")
    with pytest.raises(InstanceError, match=message) as caught:
        read_trace(path, 1000, columns=columns or None)
    assert "\n" not in str(caught.value)
    if "speed" not in columns:
        assert str(caught.value).startswith(str(path))


@given(
    name=st.sampled_from(sorted(LOGS)),
    place=st.floats(0, 1),
    removed=st.integers(0, 9),
    inserted=st.sampled_from(["", "[", "{", "}", ",", '"', "null", "-1", "1e999", "\\ud800", "\n"]),
)
def test_whatever_happens_to_a_log_it_is_read_or_refused(
    tmp_path_factory, name, place, removed, inserted
):
    content, columns, _ = LOGS[name]
    start = int(place * len(content))
    path = tmp_path_factory.mktemp("edits") / "log"
    path.write_text(content[:start] + inserted + content[start + removed :])
    for read in (read_trace, read_trace_skipping, read_measured):
        said = f"{path}"
        try:
            read(path, 16_492, columns=columns or None)
        except InstanceError as error:
            said = str(error)
        assert said.startswith(str(path))
        assert "\n" not in said


def test_rows_that_follow_others_are_not_left_out_or_sorted(trace):
    head = "prompt_tokens,output_tokens,arrival,follows\n"
    with pytest.raises(
        InstanceError, match=r"line 3, column arrival, value '3': .*sort the requests"
    ):
        read_trace(trace(head + "1,2,5,-1\n1,2,3,0\n"), 99)
    with pytest.raises(InstanceError, match="follows counts rows, so that none can be left out"):
        read_trace_skipping(trace(head + "1,2,3,-1\n1,0,4,-1\n1,2,5,0\n"), 99)
