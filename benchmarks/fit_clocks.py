"""Fit the built-in clocks of `optsched/data/batch_time.json` to published kernel times.

    python benchmarks/fit_clocks.py FOLDER

FOLDER holds `profiles` and `profiles-v0` of kernel times that LLMServingSim's authors measured, and
`runs` of the engine. Only coefficients, facts and sources are written. What a profile does not have
is said in its entry.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from optsched.clock import LinearClock
from optsched.clock.hardware import MODELS, kernel_batches, memory_tokens
from optsched.policies import VllmPolicy
from optsched.workloads import read_measured
from optsched_serving.calibration import check_clock

RECORDED = Path(__file__).parent.parent / "serving/tests/recordings/h100"
DATA = Path(__file__).parent.parent / "optsched/data/batch_time.json"
#: Of each model: transformer layers and hidden size.
SHAPES = {
    "llama-3.1-8b": (32, 4096),
    "llama-3.1-70b": (80, 8192),
    "qwen3-32b": (64, 5120),
    "qwen3-30b-a3b": (48, 2048),
}
NAMES = {"rtx4090": "RTX 4090", "rtxpro6000": "RTX PRO 6000", "h100": "H100"}
GPUS = {"rtx4090": "rtx4090-24gb", "rtxpro6000": "rtxpro6000-96gb", "h100": "h100-80gb"}
#: Seconds per transfer and bytes per second between GPUs: PCIe as in LLMServingSim's
#: configuration; NVLink by its published rate, with a latency that is an assumption.
LINKS = {"rtxpro6000": (20e-6, 16e9), "h100": (10e-6, 450e9)}
#: Seconds between batches: found on the run of Llama-3.1-8B on that machine.
OVERHEADS = {"rtxpro6000": 0.0007}
AMPLE = 400_000  # tokens, where a run does not say how many fit; memory never bound there
WEIGHTS = {field.name for field in fields(LinearClock)} - {"name"}
H100_BANDWIDTH = 3.35e12  # bytes per second, published
#: Without the times of its experts.
INCOMPLETE = ("qwen3-30b-a3b-2xrtxpro6000",)
SOURCE = "casys-kaist/LLMServingSim (MIT), commit 5daddb2"


def signed(share: float) -> str:
    """Write a share in percent, with a sign that is never that of zero alone."""
    return f"{round(share, 3) + 0.0:+.1%}"


def from_v0(old: Path, new: Path, model: str, ranks: int) -> None:
    """Write an older profile in the newer format; decodes read their KV cache at full bandwidth."""
    layers = pd.read_csv(old / "layers.csv.gz")
    wide = layers.pivot(index="input", columns="layer_name", values="latency(ns)") / 1000
    once = {"embedding": wide["embedding"], "final_layernorm": wide["final_layernorm"]}
    norms = (wide["input_layernorm"] + wide["post_layernorm"]) / 2
    parts = ["q_proj", "k_proj", "v_proj", "rope", "o_proj", "gate_proj", "up_proj", "act_fn"]
    each = wide[[*parts, "down_proj"]].sum(axis=1)
    dense = pd.DataFrame({**once, "layernorm": norms, "others": each})
    dense.index.name = "tokens"
    dense.reset_index().melt("tokens", var_name="layer", value_name="time_us")[
        ["layer", "tokens", "time_us"]
    ].to_csv(new / "dense.csv", index=False)
    heads = wide["lm_head"].loc[:256].rename("time_us").reset_index()
    heads.insert(0, "layer", "lm_head")
    heads.rename(columns={"input": "sequences"}).to_csv(new / "per_sequence.csv", index=False)
    facts = MODELS[model]
    token_us = 1e6 * facts.kv_bytes_per_token / facts.layers / ranks / H100_BANDWIDTH
    contexts, behind = 2 ** np.arange(4, 15), np.append(0, 2 ** np.arange(4, 15))
    rows = []
    for chunk in (0, *2 ** np.arange(4, 12)):
        for history in behind if chunk else (0,):
            work = float(chunk**2 + 2 * chunk * history)
            longest = min(work**0.5, 2048)
            prompt = np.interp(longest, wide.index, wide["attn"]) * max(work / 2048**2, 1)
            for decodes in 2 ** np.arange(0, 9):
                for context in contexts:
                    time = prompt * (chunk > 0) + decodes * context * token_us
                    rows.append((chunk, history, decodes, context, time))
    names = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(rows, columns=names).to_csv(new / "attention.csv", index=False)


def entry(folder: Path, *, old: bool) -> tuple[str, dict[str, Any]]:
    """Return the name and the entry of the clock of a profile."""
    model, _, machine = folder.name.rpartition("-")
    count, gpu = (int(machine[0]), machine[2:]) if machine[1] == "x" else (1, machine)
    layers, hidden = SHAPES[model]
    latency, bandwidth = LINKS.get(gpu, (0.0, 1.0))
    overhead = OVERHEADS.get(gpu, 0.0)
    left_out = "CPU work between batches" if not overhead else "decodes of unlike lengths"
    with tempfile.TemporaryDirectory() as place:
        if old:
            from_v0(folder, Path(place), model, count)
            left_out += (
                "; attention of decodes, which is taken as reading the KV cache at "
                f"{H100_BANDWIDTH / 1e12:g} TB/s"
            )
        batches = kernel_batches(
            Path(place) if old else folder,
            layers,
            memory=memory_tokens(model, GPUS[gpu], count, 0.9),
            ranks=count,
            hidden=hidden,
            link_latency=latency,
            link_bandwidth=bandwidth,
            overhead=overhead,
        )
    fit = LinearClock.fit(batches, folder.name)
    facts: dict[str, Any] = {
        "title": f"{model} on {count if count > 1 else 'one'} {NAMES[gpu]}",
        "model": model,
        "gpu": GPUS[gpu],
        "gpus": count,
        "engine": "kernels unfused" if old else "vLLM 0.19.0, bfloat16",
        "source": SOURCE,
        "fit": f"kernel times of {fit.judged:,} random batches that were not fitted: bias "
        f"{signed(fit.bias)}, mean error {fit.mean_error:.1%}",
        "left_out": left_out,
    }
    if overhead:
        facts["overhead"] = f"{overhead:g} s per batch, found on a measured run of that machine"
    if count > 1:
        facts["link"] = f"{latency:g} s and {bandwidth:.3g} bytes/s, assumed"
    weights = json.loads(fit.clock.to_json())
    facts |= {name: weights[name] for name in weights if weights[name] and name != "unit"}
    return facts.pop("name"), facts


def measured(folder: Path, clock: LinearClock) -> str:
    """Say how far the clock is from a measured run."""
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    options = meta["engine_kwargs"]
    blocks = meta.get("kv_cache", {}).get("num_gpu_blocks")
    engine = VllmPolicy(
        *("vllm", "the engine of the run", blocks),
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
    )
    memory = 16 * (blocks - 1) if blocks else AMPLE
    log = read_measured(folder / "requests.jsonl.gz", memory, seconds_per_step=1e-6)
    found = check_clock(clock, *log, engine)
    print(found)
    return (
        f"{meta['num_requests']} requests of vLLM {meta['vllm_version']}: mean latency "
        f"{signed(found.error())}, p99 {signed(found.error('latency', 'p99'))}, mean TTFT "
        f"{signed(found.error('ttft'))}"
    )


def on_h100(clock: LinearClock) -> str:
    """Say how far the clock is from the batches of our own runs."""
    import validate_gpu

    names = "fit", "seed-1-0", "seed-2-0"  # of vLLM's own scheduler
    runs = [validate_gpu.run_of(RECORDED, name) for name in names]
    off = [
        validate_gpu.seconds_of(clock, run["sums"]) / np.diff(run["spans"]).sum() for run in runs
    ]
    batches = sum(len(run["sums"]) for run in runs)
    each = ", ".join(signed(share - 1) for share in off)
    return f"{batches:,} batches of vLLM 0.26.0 in {len(runs)} runs: time of all {each}"


def main() -> None:
    """Replace the entries of these profiles."""
    content = json.loads(DATA.read_text(encoding="utf-8"))
    profiles = Path(sys.argv[1])
    for kind in ("profiles", "profiles-v0"):
        for folder in sorted((profiles / kind).iterdir()):
            if folder.name in INCOMPLETE:
                continue
            name, facts = entry(folder, old=kind == "profiles-v0")
            bare = LinearClock(name, **{key: facts[key] for key in WEIGHTS if key in facts})
            if (profiles / "runs" / name).is_dir():
                facts["measured"] = measured(profiles / "runs" / name, bare)
            if name == "llama-3.1-8b-h100":
                facts["measured"] = on_h100(bare)
            content["clocks"][name] = facts
            print(f"{name}: {facts['fit']}")
    DATA.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
