"""Every hint on a wrong name, followed to the letter, is right or refused."""

import itertools
import re

import pytest

from optsched import Instance, read_trace
from optsched.errors import InstanceError, mistyped
from optsched.workloads.formats import FORMATS, unit_in

#: What a column holds that has such a name: prompts, outputs, arrivals, or something else.
PROMPT = [
    "promt_tokens", "prompt_token", "prompttokens", "Prompt_Tokens", "prompt-tokens",
    "input_tokens", "inputTokens", "context_tokens", "prefill_tokens", "prompt_len",
    "input_length", "tokens_in", "n_input_tokens",
]  # fmt: skip
OUTPUT = [
    "ouput_tokens", "output_token", "outputtokens", "Output-Tokens", "completion_tokens",
    "generated_tokens", "outputTokens", "decode_tokens", "output_len", "response_length",
    "tokens_out", "num_output_tokens",
]  # fmt: skip
ARRIVAL = [
    "arival_s", "arrivals", "arrived_at", "timestamp", "start_time", "request_ts", "created_at",
    "sent_ts",
]  # fmt: skip
_KINDS = [
    "total", "cached", "reasoning", "audio", "image", "accepted", "rejected", "draft", "tool",
    "system", "thinking", "unused", "billed", "saved", "prefix_cache", "kv", "evicted", "mean",
    "avg", "average", "median", "p50", "p99", "ideal",
]  # fmt: skip
OTHER = [
    *(f"{kind}_{what}" for kind in _KINDS for what in ("tokens", "token_count", "length", "len")),
    *(f"{kind}_{what}_tokens" for what in ("prompt", "output", "input", "completion")
      for kind in ("cached", "mean", "avg", "reasoning", "median", "p99", "estimated", "unbilled")),
    *(f"{what}_{unit}" for unit in ("ms", "s", "us", "time", "price", "cost", "text", "id", "tps")
      for what in ("prompt", "output", "input", "completion", "generation", "decode", "prefill")),
    *("Request ID", "Request tokens per second", "Response ID", "Model tokens", "context_window",
      "latency", "latency_ms", "duration", "duration_s", "ttft", "ttft_ms", "tpot", "end_time",
      "finish_time", "end_ts", "last_token_ts", "first_token_s", "e2e_latency_s", "queue_time",
      "tokens", "tokens_per_second", "user", "model", "temperature", "request_id", "batch_size",
      "weight_class", "deadline_ms", "client_id", "priority_class", "label_id", "output_bound",
      "tokens_total", "outputs_per_second", "cost", "price", "region", "tier", "seed", "top_p"),
]  # fmt: skip
NAMES = [
    *((name, "prompt_tokens") for name in PROMPT),
    *((name, "output_tokens") for name in OUTPUT),
    *((name, "arrival_s") for name in ARRIVAL),
    *((name, None) for name in OTHER),
]
HINT = re.compile(r"name it (\w+)( and divide)?|did you mean '([^']+)'")


def followed(message):
    """Return what a hint says that a column is."""
    found = HINT.search(message)
    return found and (found[1] or found[3])


def test_the_corpus_is_large():
    assert len({name for name, _ in NAMES}) > 250


@pytest.mark.parametrize("beside", [(), ("prompt_tokens",), ("output_tokens",),
                                    ("prompt_tokens", "output_tokens")])  # fmt: skip
def test_a_hint_on_a_column_says_what_it_is_or_nothing(trace, beside):
    wrong = []
    for name, meant in NAMES:
        header = [*beside, name]
        path = trace(f"{','.join(header)}\n{','.join('5' * len(header))}\n")
        for read in (
            lambda path=path: read_trace(path, 100),
            lambda path=path, name=name: read_trace(
                path, 100, columns={"prompt": "prompt_tokens", "output": f"no {name}"}
            ),
        ):
            try:
                read()
            except InstanceError as error:
                said = followed(str(error))
                if said is not None and said not in (meant, *header) and meant != said:
                    wrong.append((name, said))
    assert not wrong


@pytest.mark.slow
def test_a_hint_on_a_column_that_was_asked_for_is_no_other_one(trace):
    wrong = []
    for (asked, meant), (there, is_one) in itertools.product(NAMES, NAMES):
        if asked != there and (said := mistyped(asked, [there])) and meant != is_one:
            wrong.append((asked, said))
    allowed = [pair for pair in wrong if not {*pair} <= {*OTHER}]
    assert not allowed


def test_no_format_calls_a_column_what_a_hint_calls_otherwise():
    roles = {"prompts": "prompt_tokens", "outputs": "output_tokens"}
    for form in FORMATS:
        for role, native in roles.items():
            for column in form.columns[role].split("|"):
                other = roles[({*roles} - {role}).pop()]
                with pytest.raises(InstanceError) as caught:
                    Instance.from_pandas(frame(column), 100)
                assert followed(str(caught.value)) in (native, None)
                assert followed(str(caught.value)) != other


def frame(column):
    import pandas as pd

    return pd.DataFrame({column if column != "prompt_tokens" else "input": [5]}).rename(
        columns={"output_tokens": "generated"}
    )


def test_a_time_in_another_unit_is_divided_and_nothing_else_is(trace):
    for name in ("start_ms", "arrival_us", "timestamp_ns"):
        with pytest.raises(
            InstanceError, match=r"name it arrival_s and divide its values by 1,000"
        ):
            read_trace(trace(f"prompt_tokens,output_tokens,{name}\n5,2,7\n"), 100)
    assert unit_in("prompt_ms") == "ms"
    with pytest.raises(InstanceError) as caught:
        read_trace(trace("prompt_ms,output_tokens\n5,2\n"), 100)
    assert followed(str(caught.value)) is None


def test_penalties_out_of_range_are_not_called_negative():
    from optsched import OptschedError
    from optsched.models.hindsight import check_lateness

    for penalty in (1e101, 1e-300, -1.0):
        with pytest.raises(
            OptschedError, match=r"penalty is .*, but must be 0 or a number from 1e"
        ):
            check_lateness("per-step", penalty, OptschedError)
