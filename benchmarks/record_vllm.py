"""Records the batches that a real vLLM forms for random workloads of our own.

`record_vllm.py FILE` adds those of the version that is installed to a file of recordings, which
tests hold against optsched (tests/serving/engines/test_vllm_versions.py). For another version than
that of `make validate`, install it in a copy of build/validate:
`python -m pip install --no-deps vllm==VERSION`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from validate_vllm import CLOCK, KINDS, drawn

CASES = 5  # of each kind and mode
RECORDED = ("vLLM itself, by arrival", "vLLM itself, by priority", "`OrderedScheduler`, area")


def recorded():
    """Yield the facts of each case, and the arrays of its batches and requests."""
    import in_vllm

    for kind in RECORDED:
        planned, settings, name = KINDS[kind]
        settings = settings and {"aging": None, "trusted": True} | settings
        for asynchronous in (False, True):
            for seed in range(1000, 1000 + 2 * CASES):  # the later half with more options
                more = in_vllm.VERSION == "0.33.0" and seed >= 1000 + CASES
                options, requests = drawn(seed, asynchronous, "priority" in kind, more)
                longest = max(prompt + output for prompt, output, *_ in requests)
                longest = options.get("max_model_len", longest + 8)
                scheduler = in_vllm.make(options, longest, settings, planned)
                extras = [{"expected_output": request[1]} for request in requests]
                depth = 2 if asynchronous else 1
                served = in_vllm.serve(scheduler, requests, CLOCK, depth=depth, extras=extras)
                facts = {
                    "version": in_vllm.VERSION,
                    "policy": name,
                    "options": options,
                    "requests": [(p, o, round(at * 1e6), rank) for p, o, at, rank in requests],
                }
                yield (
                    facts,
                    {
                        "rows": np.array(served.rows, dtype=np.int16),
                        "contents": np.array(served.sums, dtype=np.int32),
                        "first": served.first,
                        "last": served.last,
                    },
                )


def main(path):
    """Add the recordings of this version to a file."""
    cases, arrays = [], {}
    if path.exists():
        with np.load(path) as found:
            arrays = dict(found)
        cases = json.loads(str(arrays.pop("cases")))
    for facts, made in recorded():
        arrays |= {f"{name}{len(cases)}": array for name, array in made.items()}
        cases.append(facts)
    np.savez_compressed(path, cases=json.dumps(cases), **arrays)
    print(f"{path}: {len(cases)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
