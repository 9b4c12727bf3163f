"""Spans of OpenTelemetry with gen_ai attributes, as exporters and the collector write them."""

import gzip
import json
from collections import Counter

import pytest
from log_formats import LATENCY, TTFT, exported, inferred, of_vllm, span
from trace_samples import lines

from optsched import read_trace
from optsched.errors import InstanceError
from optsched.workloads import read_measured

#: What says that a request was not measured, and what it is counted as.
LEFT_OUT = {
    "status 2": ({"status": {"code": 2}}, {}, "failed"),
    "status by name": ({"status": {"code": "STATUS_CODE_ERROR", "message": "boom"}}, {}, "failed"),
    "error.type": ({}, {"error.type": "timeout"}, "failed"),
    "error of HTTP": ({}, {"http.response.status_code": 503}, "failed"),
    "cancelled": ({"status": {"code": 2, "message": "context canceled"}}, {}, "cancelled"),
    "CancelledError": ({}, {"error.type": "asyncio.CancelledError"}, "cancelled"),
    "abort": ({}, {"gen_ai.response.finish_reasons": ["abort"]}, "cancelled"),
}


def read(trace, *spans, **how):
    notes, gone = [], Counter()
    path = trace(lines(*map(exported, spans)), "spans.jsonl")
    found, _ = read_measured(path, 1000, note=notes.append, left_out=gone, **how)
    return found, notes, gone


@pytest.mark.parametrize("name", LEFT_OUT)
def test_errors_and_cancelled_requests_are_left_out_and_counted(trace, name):
    facts, attributes, status = LEFT_OUT[name]
    bad = [
        span("bad", of_vllm(1) | attributes, 0.5, **facts),
        span("blank", {"gen_ai.operation.name": "chat"} | attributes, 0.6, **facts),
    ]
    found, notes, gone = read(trace, span("good", of_vllm(0)), *bad)
    assert found.prompts.tolist() == [70]
    assert gone == {status: 2}
    assert f"left out, as not measured: 2 {status}" in notes[0]


def test_the_innermost_span_of_a_request_counts_and_each_once(trace):
    agent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.usage.input_tokens": 150,
             "gen_ai.usage.output_tokens": 9}  # fmt: skip
    spans = [
        span("agent", agent),
        span("gateway", inferred(0), parentSpanId="agent"),
        span("http", {"http.response.status_code": 200}, parentSpanId="gateway"),
        span("server", of_vllm(0), 0.25, parentSpanId="http"),
        span("tool", {"gen_ai.operation.name": "execute_tool"}, parentSpanId="agent"),
        span("retried", inferred(1), 1.0),
        span("try", {"gen_ai.operation.name": "chat", "error.type": "503"}, parentSpanId="retried"),
        span("server", of_vllm(0), 0.25, parentSpanId="http"),  # exported again
        span("a", inferred(2), 3.0, parentSpanId="b"),
        span("b", {}, parentSpanId="a"),
    ]
    found, notes, gone = read(trace, *spans)
    assert found.prompts.tolist() == [70, 30, 50]
    assert found.arrivals.tolist() == [0, 15, 55]
    assert gone == {"failed": 1}
    assert "spans around others, of the same requests, do not count: 1" in notes[0]


def test_units_and_names_are_told_and_packed_exports_are_read(trace):
    first, second = (json.dumps(exported(span(str(at), of_vllm(at), at))) for at in (0, 1))
    plain = trace("\n".join([first, '{"resourceMetrics": []}', second]), "a.jsonl")
    packed = trace(gzip.compress(plain.read_bytes()), "a.jsonl.gz")
    notes = []
    found = read_trace(packed, 1000, note=notes.append)
    assert found == read_trace(plain, 1000)
    assert found.arrivals.tolist() == [0, 20]
    listed = f"[{first}, {second}]"
    assert read_trace(trace(listed, "a.json"), 1000) == found
    times = read_measured(packed, 1000)[1]
    assert times.first_token.tolist() == TTFT[:2]
    assert times.latency.tolist() == LATENCY[:2]
    assert notes[0].startswith(
        "read as OpenTelemetry GenAI spans: gen_ai.usage.prompt_tokens -> prompt_tokens, "
        "gen_ai.usage.completion_tokens -> output_tokens, startTimeUnixNano (ns) -> arrival_s; "
        "not read: gen_ai.request.id"
    )
    tenants = [span(own, of_vllm(at) | {"tenant.id": at}) for at, own in enumerate("abc")]
    path = trace(lines(*map(exported, tenants)), "tenants.jsonl")
    assert read_trace(path, 1000, columns="client=tenant.id").clients.tolist() == [0, 1, 2]
    named = span("x", {"app.in": 5, "app.out": 6, "gen_ai.operation.name": "chat"})
    own = trace(json.dumps(exported(named)), "own.json")
    columns = "prompt=app.in,output=app.out,arrival=startTimeUnixNano"
    assert read_trace(own, 1000, columns=columns).outputs.tolist() == [6]


def test_what_is_wrong_is_named_by_its_span(trace):
    without = span("s", {"gen_ai.operation.name": "chat", "gen_ai.usage.input_tokens": 9})
    with pytest.raises(InstanceError, match=r"spans.jsonl, span 2, column gen_ai.usage.output_tok"):
        read(trace, span("good", inferred(0)), without)
    assert len(read(trace, span("good", inferred(0)), without, skip_invalid=True)[0]) == 1
    undated = span("s", inferred(1), startTimeUnixNano="soon")
    with pytest.raises(InstanceError, match=r"span 2, column startTimeUnixNano, value '\"soon\"'"):
        read(trace, span("good", inferred(0)), undated)
    with pytest.raises(InstanceError, match="none of its 1 spans is a request of a language model"):
        read(trace, span("other", {"http.route": "/"}))
    broken = trace(lines(exported(span("good", inferred(0)))) + '\n{"resourceSpans": [', "cut")
    with pytest.raises(InstanceError, match="cut: a line or an entry holds no JSON object; is the"):
        read_trace(broken, 1000)
    odd = [{"attributes": 5}, {"attributes": [5, {"key": 4}]}, 7, {"status": "x"}]
    content = {
        "resourceSpans": [4, {"scopeSpans": {"spans": []}}, {"scopeSpans": [{"spans": odd}]}]
    }
    with pytest.raises(InstanceError, match="none of its 3 spans is a request"):
        read_trace(trace(json.dumps(content), "odd"), 1000)
