"""Two requests or so in every format that is read."""

import json

import numpy as np

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
QWEN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 521, '
    '"output_length": 132, "type": "text", "turn": 1, "hash_ids": [9, 8]}\n'
    '{"chat_id": 8, "parent_chat_id": 7, "timestamp": 122.228, "input_length": 40, '
    '"output_length": 8, "type": "file", "turn": 2, "hash_ids": [9]}\n'
)
AZURE_IMAGES = (
    "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
    "2024-10-15 00:00:00.50,0,120,5\n2024-10-15 00:00:01,2,3313,60\n"
)


def lines(*objects: dict) -> str:
    """Return JSON lines."""
    return "".join(f"{json.dumps(each)}\n" for each in objects)


def _dynamo(request: str, session: str, received: int, **more: object) -> dict:
    return {
        "schema": "dynamo.request.trace.v1",
        "event_type": "request_end",
        "event_time_unix_ms": received + 5000,
        "agent_context": {"session_id": session},
        "request": {
            "request_id": request,
            "model": "small",
            "output_tokens": 7,
            "request_received_ms": received,
            "cached_tokens": 16,
        }
        | more,
    }


#: Ended in another order than received, with a tool's event before, and hashes of 64 bits.
DYNAMO = lines(
    {"schema": "dynamo.request.trace.v1", "event_type": "tool_end", "event_time_unix_ms": 1,
     "tool": {"tool_call_id": "a", "tool_class": "b"}},
    _dynamo("r2", "s1", 1_700_000_002_000,
            replay={"trace_block_size": 64, "input_length": 100,
                    "input_sequence_hashes": [2**64 - 1, 5]}),
    _dynamo("r1", "s1", 1_700_000_000_500, input_tokens=64,
            replay={"trace_block_size": 64, "input_length": 64,
                    "input_sequence_hashes": [2**64 - 1]}),
)  # fmt: skip


def _aiperf(session: str, turn: int, start: int, prompt: float, output: float) -> dict:
    return {
        "metadata": {
            "session_num": 0,
            "x_correlation_id": session,
            "conversation_id": "c",
            "turn_index": turn,
            "request_start_ns": start,
            "benchmark_phase": "profiling",
        },
        "metrics": {
            "input_sequence_length": {"value": prompt, "unit": "tokens"},
            "output_sequence_length": {"value": output, "unit": "tokens"},
        },
        "error": None,
    }


AIPERF = lines(
    _aiperf("u", 1, 1_759_813_208_000_000_000, 560.0, 9),
    _aiperf("u", 0, 1_759_813_207_500_000_000, 550, 12),
)


def _round(session: str, index: int, stamps: list[tuple[str, str]]) -> dict:
    return {
        "provider": "claude",
        "project": "p",
        "session_id": session,
        "round_index": index,
        "input_tokens_total": 3000 + 100 * index,
        "prefix_tokens": 2000,
        "newly_append_tokens": 1000 + 100 * index,
        "output_tokens": 40 + index,
        "timing_events": [
            {"event_type": kind, "timestamp": f"2026-06-01T05:40:{at}Z"} for kind, at in stamps
        ],
        "tools": [],
    }


TRACELAB = lines(
    _round("claude:a", 0, [("user_message", "20.151"), ("text", "29.000")]),
    _round("claude:a", 1, [("tool_result", "31"), ("tool_result", "50.651"), ("text", "55.1")]),
    _round("codex:b", 0, [("reasoning", "21.151"), ("text", "20.651")]),
)


def of_clients(path):
    """Write 200 requests of three clients, without arrivals; return the path."""
    rng = np.random.default_rng(1)
    rows = zip(rng.integers(10, 800, 200), 1 + rng.exponential(200, 200).astype(int), strict=True)
    text = "\n".join(f"{p},{o},{number % 3}" for number, (p, o) in enumerate(rows))
    path.write_text(f"prompt_tokens,output_tokens,client\n{text}\n")
    return path
