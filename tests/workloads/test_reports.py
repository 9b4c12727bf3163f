"""The reader's rules: where requests are in a report, and which of them were measured."""

import json
from collections import Counter

import numpy as np
import pytest
from log_formats import AIPERF, BLIS, GUIDELLM, LITELLM, LLMPERF, LOGS, VLLM, table
from tabled import tabled
from trace_samples import lines

from optsched import read_trace
from optsched.errors import InstanceError
from optsched.workloads import read_measured, read_trace_skipping
from optsched.workloads.formats import FORMATS
from optsched.workloads.reports import flat

#: What a tool writes of a request that was not measured, and what it is called here.
STATUSES = [
    ("metadata.benchmark_phase", "warmup", "warmup"),
    ("metadata.was_cancelled", True, "cancelled"),
    ("error", {"code": 500, "type": "ServerError", "message": "gone"}, "failed"),
    ("error_code", 429, "failed"),
    ("error_msg", "too many requests", "failed"),
    ("info.status", "errored", "failed"),
    ("info.status", "cancelled", "cancelled"),
    ("info.status", "in_progress", "incomplete"),
    ("status", "failure", "failed"),
    ("status", "timeout", "failed"),
    ("status_code", 503, "failed"),
    ("success", False, "failed"),
    ("exception", "ConnectionError()", "failed"),
    ("phase", "warm-up", "warmup"),
    ("isWarmup", "true", "warmup"),
    ("finish_reason", "abort", "cancelled"),
    ("stage", "cooldown", "cooldown"),
    ("completed", False, "incomplete"),
]
#: What is written of those that were.
FINE = {
    **{"metadata.benchmark_phase": "profiling", "metadata.was_cancelled": False, "error": None},
    **{"error_code": None, "error_msg": "", "info.status": "completed", "status": "success"},
    **{"status_code": 200, "success": True, "exception": "None", "phase": "main", "stage": "run 2"},
    **{"isWarmup": "false", "finish_reason": "stop", "completed": True},
}


def put(record, path, value):
    """Return a copy of an object with a value at a path of keys."""
    copy = json.loads(json.dumps(record))
    *outer, last = path.split(".")
    place = copy
    for key in outer:
        place = place.setdefault(key, {})
    place[last] = value
    return copy


def emptied(record, form):
    """Return a copy of a record that has nothing but when it was sent, as of a failed request."""
    lost = [form.columns[role] for role in form.columns if role not in ("clock", "conversation")]
    for path in [name for column in lost for name in column.split("|") if name in flat(record)]:
        record = put(record, path, None)
    return record


RECORDS = {"AIPerf records": AIPERF, "BLIS TraceV2": BLIS, "LiteLLM spend logs": LITELLM,
           "llmperf": LLMPERF}  # fmt: skip
WRITTEN = {"lines": lambda records: lines(*records), "list": json.dumps,
           "report": lambda records: json.dumps({"model": "m", "results": records}, indent=1),
           "CSV": table}  # fmt: skip


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("name", RECORDS)
def test_a_request_that_was_not_measured_is_left_out_and_counted(trace, name, written):
    records = RECORDS[name]
    if written == "CSV":
        records = [flat(record) for record in records]
    form = next(each for each in FORMATS if each.name == name)
    columns = {"arrival": "sent_s"} if name == "llmperf" else {}
    whole = read_trace(trace(WRITTEN[written](records), "log"), 1000, columns=columns)
    for path, value, status in STATUSES:
        good = [put(each, path, FINE[path]) for each in records]
        gone = put(emptied(records[1], form), path, value)
        if written == "CSV":
            good, gone = [each | {path: FINE[path]} for each in records], flat(gone)
            gone = {column: gone.get(column, "") for column in good[0]} | {path: value}
            gone = {name: "" if each is None else each for name, each in gone.items()}
        for at in (0, 3):  # the first one, too, which shows no format
            content = WRITTEN[written]([*good[:at], gone, *good[at:]])
            count = Counter()
            notes = []
            found = read_trace_skipping(
                trace(content, "log"), 1000, strict=True, columns=columns, left_out=count,
                note=notes.append,
            )[0]  # fmt: skip
            assert found.outputs.tolist() == whole.outputs.tolist(), (path, value)
            assert found.arrivals.tolist() == whole.arrivals.tolist()
            assert count == {status: 1}, (path, value)
            assert f"left out, as not measured: 1 {status}" in notes[0]
            measured = read_measured(trace(content, "log"), 1000, columns=columns)[1]
            assert np.isfinite(measured.latency).all()
    with pytest.warns(UserWarning, match="left out, as not measured: {'incomplete': 1}"):
        read_trace(trace(content, "log"), 1000, columns=columns)


def test_lists_side_by_side_have_errors(trace):
    failed = VLLM | {"errors": ["", "Traceback", ""], "output_lens": [4, 0, 2]}
    count = Counter()
    found = read_measured(trace(json.dumps(failed), "x.json"), 1000, left_out=count)[0]
    assert (len(found), count) == (2, {"failed": 1})


def test_lists_of_a_report_say_by_their_names_what_they_hold(trace):
    whole = read_trace(trace(json.dumps(GUIDELLM), "x.json"), 1000)
    of = {"prompt_tokens": 9, "output_tokens": None, "request_start_time": 5.0, "info": {"a": [1]}}
    lists = GUIDELLM["benchmarks"][0]["requests"] | {"errored": [of], "incomplete": [of, of]}
    report = GUIDELLM | {"benchmarks": [GUIDELLM["benchmarks"][0] | {"requests": lists}]}
    count = Counter()
    found = read_trace_skipping(trace(json.dumps(report), "x.json"), 1000, left_out=count)[0]
    assert found == whole
    assert count == {"failed": 1, "incomplete": 2}
    record = {"prompt_tokens": 5, "output_tokens": 3, "arrival_s": 1}
    with pytest.raises(InstanceError, match=r"no request was measured, only 2 warmup \(warmup\)"):
        read_trace(trace(json.dumps({"warmup": [record] * 2}), "x.json"), 100)
    with pytest.raises(InstanceError, match=r"has no request that was measured .*1 failed"):
        read_trace(trace(json.dumps([record | {"error": "x"}]), "x.json"), 100)


def several(count, **more):
    return [{"prompt_tokens": 100 + at, "output_tokens": 10, "arrival_s": at} | more
            for at in range(count)]  # fmt: skip


TOTAL = {"prompt_tokens": 32, "output_tokens": 8}
REPORTS = {
    "settings": {"config": {"spec": {"data": [TOTAL]}}, "requests": several(6)},
    "arguments": {"args": TOTAL, "runs": [{"load": 1, "requests": several(6)}]},
    "totals": {"total": TOTAL, "mean": TOTAL, "p99": TOTAL, "log": several(6)},
    "summary": {"summary": [TOTAL] * 9, "log": several(6)},
    "totals around": {"benchmarks": [TOTAL | {"requests": several(6)}]},
    "totals beside": [TOTAL | {"n": 3, "turns": several(3)}] * 2,
    "warm-up": {"warmup": several(1), "profiling": several(6)},
    "phases": {"phases": [{"phase": "warmup", "requests": several(2)},
                          {"phase": "profiling", "requests": several(6)}]},
    "parts of a request": several(6, events=[{"t": 1}, {"t": 2}]),
}  # fmt: skip


@pytest.mark.parametrize("name", REPORTS)
def test_the_deepest_list_of_records_with_both_lengths_is_read(trace, name):
    notes = []
    for indent in (None, 1):
        path = trace(json.dumps(REPORTS[name], indent=indent), "x.json")
        found = read_trace(path, 1000, note=notes.append)
        assert len(found) == 6
        assert found.prompts.min() == 100
    assert not any("are read from" in note for note in notes)


def test_of_several_lists_that_would_do_it_is_said_which_was_read(trace):
    notes = []
    report = {"first": several(2), "second": several(3)}
    found = read_trace(trace(json.dumps(report), "x.json"), 1000, note=notes.append)
    assert len(found) == 3
    assert "requests are read from second (3), not from first (2)" in notes[0]


def test_a_status_that_no_tool_writes_counts_and_is_said(trace):
    notes = []
    path = trace("prompt_tokens,output_tokens,status\n5,3,gold\n6,3,ok\n")
    assert len(read_trace(path, 100, note=notes.append)) == 2
    assert "1 requests have a status that is not known, and count" in notes[0]


def test_an_error_of_a_forecast_is_no_failed_request(trace):
    path = trace("prompt_tokens,output_tokens,error\n5,3,0.25\n6,3,0\n")
    assert len(read_trace(path, 100)) == 2


def test_rows_are_counted_once_where_faults_are_looked_up(trace):
    path = trace("prompt_tokens,output_tokens,error\n5,3,\n6,0,gone\n7,0,\n8,1,\n")
    count = Counter()
    found, skipped = read_trace_skipping(path, 100, left_out=count)
    assert found.prompts.tolist() == [5, 8]
    assert [row.line for row in skipped] == [4]
    assert count == {"failed": 1, "invalid": 1}
    with pytest.raises(InstanceError, match="line 4, column output_tokens, value '0'"):
        read_trace(path, 100)
    follows = trace("prompt_tokens,output_tokens,follows,error\n5,3,-1,\n6,0,-1,gone\n7,1,0,\n")
    with pytest.raises(InstanceError, match="follows counts rows, so that none can be left out"):
        read_trace(follows, 100)


HEADER = "pin,pout,sent_s,ttft_s,lat_s\n"
ROLES = "prompt=pin,output=pout,arrival=sent_s,ttft=ttft_s,latency=lat_s"


@tabled()
def test_measurements_that_cannot_be_are_refused_with_their_row(trace, row, column, said):
    path = trace(f"{HEADER}300,40,1,0.1,0.7\n300,40,2,{row}\n300,40,3,nan,None\n", "log.csv")
    with pytest.raises(InstanceError, match=f"line 3, column {column}, value .*{said}"):
        read_measured(path, 10_000, columns=ROLES)
    count = Counter()
    found = read_measured(path, 10_000, columns=ROLES, skip_invalid=True, left_out=count)[1]
    assert np.array_equal(found.latency, [0.7, np.nan], equal_nan=True)
    assert count == {"invalid": 1}


def test_instants_and_gaps_that_cannot_be_are_refused_too(trace):
    row = {"input_toks": 5, "output_toks": 2, "queued_ts": 3.0, "first_token_ts": 3.5}
    for last, said in ((2.9, "is not after the arrival"), (3.2, "is before the first token")):
        text = lines(row | {"last_token_ts": 4.0}, row | {"last_token_ts": last})
        with pytest.raises(InstanceError, match=f"line 2, column last_token_ts, .*{said}"):
            read_measured(trace(text, "x.jsonl"), 100)
    bench = VLLM | {"itls": [[0.1, 0.1], [-0.1], [0.1]]}
    with pytest.raises(InstanceError, match=r"column itls, value .*must be a list of numbers from"):
        read_measured(trace(json.dumps(bench), "x.json"), 1000)


@pytest.mark.parametrize("name", ["ft_ms", "ftMs", "first token (ms)", "first.millis"])
def test_a_unit_in_a_name_counts_for_every_time(trace, name):
    path = trace(f"p,o,sent_s,{name},last_us\n5,2,10,10500,11000000\n5,2,20,20500,21000000\n")
    columns = f"prompt=p,output=o,arrival=sent_s,first_token={name},last_token=last_us"
    found = read_measured(path, 100, columns=columns)[1]
    assert found.first_token == pytest.approx([0.5, 0.5])
    assert found.latency == pytest.approx([1, 1])


def test_a_unit_that_contradicts_a_name_is_refused(trace):
    path = trace("p,o,sent_s\n5,2,10\n")
    for unit in ("ms", "steps"):
        said = f"sent_s says s by its name, but --time-unit {unit}"
        with pytest.raises(InstanceError, match=said):
            read_trace(path, 100, columns="prompt=p,output=o,arrival=sent_s", time_unit=unit)
    same = read_trace(path, 100, columns="prompt=p,output=o,arrival=sent_s", time_unit="s")
    assert same.arrivals.tolist() == [0]
    own = trace("prompt_tokens,output_tokens,arrival_s\n5,2,10\n")
    with pytest.raises(InstanceError, match="column arrival_s says s by its name"):
        read_trace(own, 100, time_unit="us")


@pytest.mark.parametrize("key", ["input_length", "prompt_length"])
def test_times_that_look_like_seconds_are_doubted_and_the_hint_is_right(trace, key):
    text = lines(*({"timestamp": at, key: 5, "output_length": 2} for at in range(30)))
    notes = []
    found = read_trace(trace(text, "x.jsonl"), 100, note=notes.append)
    assert "timestamp is read in ms, by which 1,034 requests come per second" in notes[0]
    assert found.arrivals[-1] == 1
    notes.clear()
    found = read_trace(trace(text, "x.jsonl"), 100, note=notes.append, time_unit="s")
    assert found.arrivals[-1] == 29 / 0.05
    assert "come per second" not in notes[0]


def test_every_format_has_a_status_that_is_left_out(trace):
    """Whatever the format, a record with an error beside it does not count."""
    for name, (content, columns, _) in LOGS.items():
        path = trace(content, "log")
        whole = read_trace(path, 1000, columns=columns or None)
        if content.startswith(("[", "{\n")) or "\n" not in content.strip():
            continue  # one report, which the tests above try
        *records, last = content.strip().splitlines()
        if content.startswith("{"):
            broken = json.loads(last) | {"error": "gone", "request.error": "gone"}
            text = "\n".join([*records, last, json.dumps(broken)])
        else:
            head, *rest = content.strip().splitlines()
            text = "\n".join([f"{head},error", *(f"{row}," for row in rest), f"{rest[0]},gone"])
        count = Counter()
        how = {"columns": columns or None, "left_out": count}
        found = read_trace_skipping(trace(text, "log"), 1000, **how)[0]
        assert found.outputs.tolist() == whole.outputs.tolist(), name
        assert count == {"failed": 1}, name
