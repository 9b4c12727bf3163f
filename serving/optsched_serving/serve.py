"""How a server was started: `vllm serve ...`, the arguments that it logged, or its meta.json."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from optsched.clock.hardware import GPU_BYTES, MODELS, model_facts
from optsched.errors import OptschedError

_NUMBERS = {
    **dict.fromkeys(("block_size", "max_num_seqs", "max_num_batched_tokens"), int),
    **dict.fromkeys(("max_num_active_seqs", "max_model_len", "prefill_schedule_interval"), int),
    **dict.fromkeys(("long_prefill_token_threshold", "num_gpu_blocks"), int),
    **dict.fromkeys(("tensor_parallel_size", "kv_cache_memory_bytes"), int),
    **dict.fromkeys(("watermark", "gpu_memory_utilization"), float),
}
_SWITCHES = {
    *("enable_chunked_prefill", "enable_prefix_caching", "scheduler_reserve_full_isl"),
    *("async_scheduling", "long_prefill_token_threshold_adaptive"),
}
_TEXTS = {"model", "scheduling_policy", "dtype", "kv_cache_dtype", "quantization"}
_OTHER_NAMES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "q": "quantization",
    "model_tag": "model",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "policy": "scheduling_policy",
}
#: What the simulated scheduler lacks, by name: with the values that ask for nothing.
_NOTHING = ("", "none", "false", "0", "{}", "null", "auto", "generate", "balanced", "native")
_LACKS = {
    "scheduler_cls": "name the policy instead, such as vllm:area,load+plan+learned",
    "data_parallel_size": "leave that out, and give the ranks to route, capacity or clock check as "
    "--workers",
    "config": "put the arguments of that file on the line",
    "performance_mode": "pass --max-num-seqs and --max-num-batched-tokens as the server logs them",
    **dict.fromkeys(
        (
            *("pipeline_parallel_size", "decode_context_parallel_size", "max_num_scheduled_tokens"),
            *("prefill_context_parallel_size", "speculative_config", "spec_method", "spec_model"),
            *("kv_transfer_config", "ec_transfer_config", "kv_offloading_size", "cpu_offload_gb"),
            *("enable_lora", "runner", "convert", "diffusion_config", "enable_dbo"),
            *("max_num_queued_reqs", "max_num_queued_tokens", "kv_sharing_fast_prefill"),
            *("max_num_partial_prefills", "prefix_cache_retention_interval", "prefix_match_unit"),
            *("use_replayssm", "swa_bounded_replay"),
        ),
        "the simulated scheduler has no such thing",
    ),
}
#: Of the front end, without influence on batches.
_HARMLESS = {
    *("host", "port", "api_key", "served_model_name", "seed", "trust_remote_code", "root_path"),
    *("download_dir", "load_format", "tokenizer", "revision", "chat_template", "uvicorn_log_level"),
    *("tool_call_parser", "enable_auto_tool_choice", "reasoning_parser", "enable_log_requests"),
    *("disable_log_requests", "disable_log_stats", "generation_config", "max_logprobs"),
}
#: After this the arguments of a server follow.
_STARTS = re.compile(
    r"(?:^|[\s/=;\"'])vllm\s+serve\s|\bvllm\.entrypoints\.(?:\S*api_server|cli\.main\s+serve)\s"
    r"|vllm/vllm-openai\S*\s"
)
_ENDS = {"|", "||", "&", "&&", ";", "<"}
_UNITS = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


class Served(NamedTuple):
    """What a server was told: fields of `VllmPolicy`, the model and its memory, and notes."""

    settings: dict[str, Any]
    llm: str | None = None
    gpu: str | None = None
    gpus: int = 1
    gpu_memory_utilization: float | None = None
    memory: int | None = None
    notes: tuple[str, ...] = ()


def read_served(text: str) -> Served:
    """Read a command line, or a file with one, with the arguments that vLLM logs, or meta.json.

    Raises
    ------
    OptschedError
        If there is neither, a value is none, or the simulated scheduler lacks what is asked for.

    Examples
    --------
    >>> served = read_served("vllm serve meta-llama/Llama-3.1-8B --max-num-seqs 128 -tp 2")
    >>> served.settings, served.llm, served.gpus
    ({'max_num_seqs': 128}, 'llama-3.1-8b', 2)
    """
    is_file = os.path.isfile(text)  # False, too, of a line too long for a name
    if not is_file and not any(map(str.isspace, text)) and Path(text).suffix:
        raise OptschedError(f"--serve: there is no file {text}; check its name")
    content = Path(text).read_text("utf-8", "replace") if is_file else text
    facts: dict[str, Any] = {}
    if content.lstrip().startswith("{"):
        given, facts = _of_meta(content, text)
    elif logged := re.findall(r"non-default args: (\{.*\})", content):
        try:
            given = ast.literal_eval(logged[-1])
        except (ValueError, SyntaxError):
            raise OptschedError(
                f"--serve: the arguments that {text} logged cannot be read; pass the command line"
            ) from None
        facts = {"tokens": _last(r"GPU KV cache size: ([\d,]+) tokens", content)}
    else:
        given = _of_command(content, text)
    return _served({_OTHER_NAMES.get(name, name): each for name, each in given.items()}, facts)


def _last(pattern: str, content: str) -> int | None:
    found = re.findall(pattern, content)
    return int(found[-1].replace(",", "")) if found else None


def _of_meta(content: str, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments that a meta.json has, or a JSON object of arguments, and what it saw."""
    try:
        meta = json.loads(content)
    except ValueError as error:
        raise OptschedError(f"--serve {text} is no JSON: {error}") from None
    if "engine_kwargs" not in meta:
        return meta, {}
    resolved, cache = meta.get("resolved_config", {}), meta.get("kv_cache", {})
    scheduler = resolved.get("scheduler_config", {})
    known = {name: each for name, each in scheduler.items() if name in (*_SWITCHES, *_NUMBERS)}
    known |= {"policy": scheduler.get("policy")}
    known |= {name: cache.get(name) for name in ("num_gpu_blocks", "block_size")}
    known |= {"enable_prefix_caching": cache.get("enable_prefix_caching")}
    facts = {"gpu": meta.get("hardware", {}).get("device_name"), "by": meta.get("vllm_version")}
    set_ones = {name: each for name, each in known.items() if each is not None}
    return set_ones | meta["engine_kwargs"], facts


def _of_command(content: str, text: str) -> dict[str, Any]:
    """Return the arguments of the last `vllm serve` in a text, by vLLM's own names."""
    lines = re.sub(r"\\\s*\n", " ", content).splitlines()
    for line in reversed(lines):
        if started := [*_STARTS.finditer(f"{line} ")]:
            before, rest = line[: started[-1].end()], line[started[-1].end() :]
            for quote in "\"'":  # as in sh -c '...'
                rest = rest[: rest.rfind(quote)] if before.count(quote) % 2 else rest
            try:
                return _arguments(shlex.split(rest, comments=True))
            except ValueError as error:
                raise OptschedError(f"--serve: the line of vllm serve has {error}") from None
    what = text if len(text) < 60 else f"{text[:57]}..."
    raise OptschedError(
        f"--serve {what!r} has no 'vllm serve MODEL ...', no arguments that vLLM logged ('non-"
        "default args: ...') and is no meta.json; pass one of them"
    )


def _arguments(words: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    name = "model"
    for word in words:
        if word in _ENDS or re.match(r"[12&]?>", word):
            break
        if word.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_").partition(".")[0]
            off = name.startswith("no_")
            name = _OTHER_NAMES.get(name.removeprefix("no_"), name.removeprefix("no_"))
            given[name] = value if equals else not off
            if name in _SWITCHES and not equals:
                name = "model"  # what follows is no value
        elif given.get(name, True) is True:
            given[name] = word
    return given


def _value(name: str, given: Any) -> Any:
    """Return a value as its type, 16k and 1.5G as numbers."""
    if name in _SWITCHES:
        return given if isinstance(given, bool) else str(given).lower() in ("true", "1")
    if name in _TEXTS:
        return str(given)
    matched = re.fullmatch(r"(\d+\.?\d*|\.\d+)([kmgKMG]?)", str(given))
    if matched is None:
        raise OptschedError(
            f"--serve: --{name.replace('_', '-')} is {given!r}, but must be a number; correct it"
        )
    number = float(matched[1]) * _UNITS.get(matched[2], 1)
    return number if _NUMBERS[name] is float else int(number)


def _served(given: dict[str, Any], facts: dict[str, Any]) -> Served:
    known = {*_NUMBERS, *_SWITCHES, *_TEXTS}
    looked, aside, notes = {}, [], []
    for name, value in given.items():
        option = f"--{name.replace('_', '-')}"
        if value is None or name in _HARMLESS:
            continue
        if name == "max_model_len" and str(value) in ("auto", "-1"):
            continue
        if name in known:
            looked[name] = _value(name, value)
        elif name in _LACKS:
            one = str(value) == "1" and name.endswith(("_parallel_size", "_prefills"))
            if str(value).lower() not in _NOTHING and not one:
                raise OptschedError(f"--serve has {option} {value}: {_LACKS[name]}")
        elif near := get_close_matches(name, {*known, *_LACKS}, n=1, cutoff=0.9):
            raise OptschedError(
                f"--serve has {option}, which vLLM does not know: did you mean "
                f"--{near[0].replace('_', '-')}?"
            )
        elif value is not False:
            aside.append(option)
    if aside:
        notes.append(f"of --serve these were not looked at: {', '.join(aside)}")
    if facts.get("by") not in (None, "0.33.0"):
        notes.append(f"the server was vLLM {facts['by']}; it is simulated as 0.33.0")
    fields = {"scheduling_policy", *_SWITCHES, *_NUMBERS}
    fields -= {"tensor_parallel_size", "kv_cache_memory_bytes", "gpu_memory_utilization"}
    settings = {name: each for name, each in looked.items() if name in fields}
    llm = _model(looked.get("model"))
    memory = _memory(looked, llm, facts.get("tokens"))
    if memory is None and llm is None:
        notes.append(
            f"the memory of {looked.get('model', 'a model without a name')} is not known; pass "
            "--memory M, as the server logs it (GPU KV cache size)"
        )
    gpus, share = looked.get("tensor_parallel_size", 1), looked.get("gpu_memory_utilization")
    return Served(settings, llm, _gpu(facts.get("gpu")), gpus, share, memory, tuple(notes))


def _model(name: str | None) -> str | None:
    """Return a model as optsched knows it, by the name under which it was published."""
    plain = Path(name or "").name.lower().removesuffix("-instruct").removesuffix("-hf")
    for ours in (plain, plain.replace("meta-", "")):
        if ours in MODELS:
            return ours
    return None


def _gpu(device: str | None) -> str | None:
    said = re.sub(r"[^a-z0-9]", "", (device or "").lower())
    found = [name for name in GPU_BYTES if name.partition("-")[0] in said]
    return found[0] if len(found) == 1 else None


def _memory(looked: dict[str, Any], llm: str | None, tokens: int | None) -> int | None:
    """Return the tokens that the KV cache holds, where blocks or bytes say so."""
    if tokens is not None:
        return tokens
    if "num_gpu_blocks" in looked:
        size: int = looked.get("block_size", 16)
        return (int(looked["num_gpu_blocks"]) - 1) * size  # one is not used
    changed = [
        f"--{name.replace('_', '-')} {looked[name]}"
        for name, usual in (
            ("dtype", ("auto", "bfloat16", "float16", "half")),
            ("kv_cache_dtype", ("auto", "bfloat16", "float16")),
            ("quantization", ("None",)),
        )
        if looked.get(name) not in (None, *usual)
    ]
    if changed and llm is not None:
        raise OptschedError(
            f"--serve has {changed[0]}, with which the memory is not known; add "
            "--num-gpu-blocks-override N, as the server logs its blocks"
        )
    if (held := looked.get("kv_cache_memory_bytes")) is not None and llm is not None:
        held *= looked.get("tensor_parallel_size", 1)  # it is of each GPU
        return int(held // model_facts(llm).kv_bytes_per_token)
    return None
