"""Logs in all published formats that are read, made here: three requests in each."""

import csv
import io
import json

import pandas as pd
from trace_samples import lines

#: Three requests, in the order of their arrivals, which no format below keeps.
PROMPTS, OUTPUTS, SECONDS = [70, 30, 50], [2, 4, 3], [0.0, 0.5, 2.0]
TTFT, LATENCY = [0.25, 0.5, 1.0], [0.75, 2.5, 1.5]
ORDER = [1, 2, 0]
START = 1_790_000_000  # seconds since 1970
NAN = float("nan")


def rows(**columns):
    """Return one object per request, of columns that are functions of it."""
    return [{name: make(at) for name, make in columns.items()} for at in ORDER]


def nested(row):
    """Make an object of one whose keys are paths."""
    found: dict = {}
    for path, value in row.items():
        *outer, last = path.split(".")
        place = found
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return found


def table(records):
    """Write objects as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()


def prompts(at):
    return PROMPTS[at]


def outputs(at):
    return OUTPUTS[at]


def since(start, units=1, whole=False):
    """Return what gives arrivals in some unit, from some start."""
    return lambda at: int(start * units + SECONDS[at] * units) if whole else start + SECONDS[at]


def stamp(seconds):
    return pd.Timestamp(START * 10**9 + int(seconds * 10**9)).isoformat() + "Z"


def gaps(at):
    return [(LATENCY[at] - TTFT[at]) / (OUTPUTS[at] - 1)] * (OUTPUTS[at] - 1)


def sides(records):
    """Turn objects into lists side by side."""
    return {name: [record[name] for record in records] for name in records[0]}


VLLM = {
    "date": "20260901-120000",
    "num_prompts": 3,
    "ttfts_percentiles": [1, 2],
    **sides(
        rows(
            input_lens=prompts, output_lens=outputs, ttfts=TTFT.__getitem__, itls=gaps,
            start_times=since(5123.25), generated_texts=lambda at: "a\nb", errors=lambda at: "",
        )
    ),
}  # fmt: skip
GUIDELLM = {
    "metadata": {"version": 1},
    "benchmarks": [
        {
            "start_time": START - 3,
            "requests": {
                "successful": rows(
                    request_id=str, prompt_tokens=prompts, output_tokens=outputs,
                    request_start_time=since(START),
                    request_end_time=lambda at: START + SECONDS[at] + LATENCY[at],
                    time_to_first_token_ms=lambda at: 1000 * TTFT[at],
                ),
                "errored": [],
            },
        }
    ],
}  # fmt: skip
AIPERF = [
    nested(row)
    for row in rows(
        **{
            "metadata.request_start_ns": since(START, 10**9, whole=True),
            "metadata.worker_id": str,
            "metrics.input_sequence_length.value": prompts,
            "metrics.output_sequence_length.value": outputs,
            "metrics.time_to_first_token.value": lambda at: 1000 * TTFT[at],
            "metrics.request_latency.value": lambda at: 1000 * LATENCY[at],
        }
    )
]
RUN = rows(
    request_id=str, input_toks=prompts, output_toks=outputs, arrival_time=since(START),
    queued_ts=since(27536.5), scheduled_ts=since(27536.5),
    first_token_ts=lambda at: 27536.5 + SECONDS[at] + TTFT[at],
    last_token_ts=lambda at: 27536.5 + SECONDS[at] + LATENCY[at],
)  # fmt: skip
BLIS = rows(
    request_id=str, client_id=lambda at: "ab"[at % 2], tenant_id=lambda at: "t",
    session_id=lambda at: "", round_index=int, input_tokens=prompts, output_tokens=outputs,
    arrival_time_us=since(0, 10**6, whole=True), vllm_priority=lambda at: 9 - at,
    first_chunk_time_us=lambda at: int(10**6 * (SECONDS[at] + TTFT[at])),
    last_chunk_time_us=lambda at: int(10**6 * (SECONDS[at] + LATENCY[at])), status=lambda at: "ok",
)  # fmt: skip
LITELLM = rows(
    request_id=str, model=lambda at: "m", prompt_tokens=prompts, completion_tokens=outputs,
    user=lambda at: "xyx"[at], startTime=lambda at: stamp(SECONDS[at]),
    completionStartTime=lambda at: stamp(SECONDS[at] + TTFT[at]),
    endTime=lambda at: stamp(SECONDS[at] + LATENCY[at]),
)  # fmt: skip
AIBRIX = [
    {"timestamp": 1000 * SECONDS[at], "requests": [request]}
    for at, request in zip(
        ORDER,
        rows(prompt_length=prompts, output_length=outputs, session_id=lambda at: "ssu"[at]),
        strict=True,
    )
]
AIBRIX = [each | {"timestamp": int(each["timestamp"])} for each in AIBRIX]
OWN = rows(tokens_in=prompts, gen=outputs, who=lambda at: "pqp"[at], sent_ms=since(0, 1000, True))
MOONCAKE = rows(
    timestamp=since(0, 1000, True), input_length=prompts, output_length=outputs,
    session_id=lambda at: "kkl"[at], delay=lambda at: 0,
)  # fmt: skip

LLMPERF = rows(
    error_code=lambda at: None, error_msg=lambda at: "", number_input_tokens=prompts,
    number_output_tokens=outputs, number_total_tokens=lambda at: PROMPTS[at] + OUTPUTS[at],
    ttft_s=TTFT.__getitem__, end_to_end_latency_s=LATENCY.__getitem__, sent_s=since(0),
)  # fmt: skip


def typed(value):
    """Return a value as OTLP has it in JSON, where whole numbers are texts."""
    if isinstance(value, list):
        return {"arrayValue": {"values": [typed(each) for each in value]}}
    kinds = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    return {kinds[type(value)]: str(value) if type(value) is int else value}


def span(own, attributes, at=0.0, seconds=1.0, **more):
    """Return a span of OpenTelemetry."""
    begin = START * 10**9 + round(at * 10**9)
    return {
        "traceId": "t", "spanId": own, "name": "chat", "kind": 3,
        "startTimeUnixNano": str(begin), "endTimeUnixNano": str(begin + round(seconds * 10**9)),
        "attributes": [{"key": key, "value": typed(value)} for key, value in attributes.items()],
        "status": {},
    } | more  # fmt: skip


def exported(*spans):
    """Return spans as an export has them."""
    scope = {"scope": {"name": "vllm.llm_engine"}, "spans": [*spans]}
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [scope]}]}


def inferred(at):
    """Return attributes by OpenTelemetry's conventions."""
    return {
        "gen_ai.operation.name": "chat", "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": PROMPTS[at], "gen_ai.usage.output_tokens": OUTPUTS[at],
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.response.time_to_first_chunk": TTFT[at],
    }  # fmt: skip


def of_vllm(at):
    """Return attributes of vLLM's spans."""
    return {
        "gen_ai.request.id": f"cmpl-{at}", "gen_ai.request.max_tokens": 99,
        "gen_ai.usage.prompt_tokens": PROMPTS[at], "gen_ai.usage.completion_tokens": OUTPUTS[at],
        "gen_ai.latency.time_in_queue": 0.01, "gen_ai.latency.e2e": LATENCY[at],
        "gen_ai.latency.time_to_first_token": TTFT[at],
    }  # fmt: skip


SPANS = [span(str(at), inferred(at), SECONDS[at], LATENCY[at]) for at in ORDER]
VLLM_SPANS = [span(str(at), of_vllm(at), SECONDS[at], 9.0, kind=2) for at in ORDER]

#: Text and options of each, and whether times of tokens were measured.
LOGS = {
    "optsched CSV": (table(rows(prompt_tokens=prompts, output_tokens=outputs, model=lambda _: "m",
                                arrival_s=since(0))), {}, False),
    "own JSON lines": (lines(*rows(prompt_tokens=prompts, output_tokens=outputs,
                                   arrival_s=since(START))), {}, False),
    "Azure": (table(rows(TIMESTAMP=lambda at: stamp(SECONDS[at])[:-1].replace("T", " "),
                         ContextTokens=prompts, GeneratedTokens=outputs)), {}, False),
    "BurstGPT": (table(rows(**{"Timestamp": since(5), "Model": str, "Request tokens": prompts,
                               "Response tokens": outputs, "Log Type": str})), {}, False),
    "Vidur": (table(rows(**{"Unnamed: 0": int, "arrived_at": since(0),
                            "num_prefill_tokens": prompts, "num_decode_tokens": outputs})),
              {}, False),
    "Mooncake": (lines(*MOONCAKE), {}, False),
    "Bailian": (lines(*rows(chat_id=int, parent_chat_id=lambda _: -1, timestamp=since(61.5),
                            input_length=prompts, output_length=outputs, type=lambda _: "text",
                            turn=lambda _: 1)), {}, False),
    "TraceLab": (lines(*rows(provider=str, session_id=str, round_index=int, output_tokens=outputs,
                             input_tokens_total=prompts, timing_events=lambda at: [
                                 {"event_type": "user_message", "timestamp": stamp(SECONDS[at])}
                             ])), {}, False),
    "Dynamo": (lines(*map(nested, rows(**{
        "schema": lambda _: "dynamo.request.trace.v1", "event_type": lambda _: "request_end",
        "request.input_tokens": prompts, "request.output_tokens": outputs,
        "request.request_received_ms": since(START, 1000, True)}))), {}, False),
    "OpenTelemetry": (json.dumps(exported(*SPANS), indent=1), {}, True),
    "OpenTelemetry, vLLM": (json.dumps(exported(*VLLM_SPANS)), {}, True),
    "AIPerf": (lines(*AIPERF), {}, True),
    "LLMServingSim": (lines(*RUN), {}, True),
    "LLMServingSim data set": (lines(*rows(input_toks=prompts, output_toks=outputs,
                                           arrival_time_ns=since(0, 10**9, True),
                                           input_tok_ids=lambda at: [1] * 3)), {}, False),
    "llmperf": (json.dumps(LLMPERF), {"arrival": "sent_s"}, True),
    "vllm bench": (json.dumps(VLLM), {}, True),
    "vllm bench, indented": (json.dumps(VLLM, indent=2), {}, True),
    "GuideLLM": (json.dumps(GUIDELLM, indent=1), {}, True),
    "splitwise-sim": (table(rows(request_id=int, request_type=lambda _: 2, application_id=int,
                                 arrival_timestamp=since(0.125), batch_size=lambda _: 1,
                                 prompt_size=prompts, token_size=outputs)), {}, False),
    "BLIS TraceV2": (table(BLIS), {}, True),
    "AIBrix": (lines(*AIBRIX), {}, False),
    "ServeGen": (table(rows(request_id=int, timestamp=since(3), input_tokens=prompts,
                            output_tokens=outputs)), {}, False),
    "LiteLLM": (json.dumps(LITELLM), {}, True),
    "LiteLLM, CSV": (table(LITELLM), {}, True),
    "an own JSON list": (json.dumps(OWN), {"prompt": "tokens_in", "output": "gen",
                                           "arrival": "sent_ms", "client": "who"}, False),
    "own lists beside scalars": (
        json.dumps({"model": "m", "results": {"n": 3, "log": sides(OWN)}}),
        {"prompt": "results.log.tokens_in", "output": "results.log.gen",
         "arrival": "results.log.sent_ms"}, False),
    "own latencies": (table(rows(i=prompts, o=outputs, at_s=since(0), ttft_ms=lambda at:
                                 1000 * TTFT[at], e2e_s=LATENCY.__getitem__)),
                      {"prompt": "i", "output": "o", "arrival": "at_s", "ttft": "ttft_ms",
                       "latency": "e2e_s"}, True),
}  # fmt: skip
