"""A folder of kernel times that are known formulas."""

import itertools

import pandas as pd

COUNTS = [2**power for power in range(12)]


def attention(chunk, behind, decodes, context):
    """Microseconds of a kernel that is linear in what `LinearClock` counts."""
    squares, resident = chunk**2 + 2 * chunk * behind, decodes * context
    return 1e-5 * squares + 2e-4 * resident * (1 + (chunk > 0))


def profile(folder, experts=None):
    """Write a folder of kernel times, in microseconds."""
    layers = {"embedding": 1e-3, "layernorm": 2e-3, "qkv_proj": 4e-2, "final_layernorm": 3e-3}
    dense = [(name, n, 5 + each * n) for name, each in layers.items() for n in COUNTS]
    sampled = [("lm_head", n, 100 + 0.5 * n) for n in COUNTS[:9]]
    grid = itertools.product(
        [0, *COUNTS[4:]], [0, *COUNTS[4:], 4096, 8192], COUNTS[:9], [*COUNTS[4:], 4096]
    )
    rows = [(*at, attention(*at)) for at in grid if at[0] or not at[1]]
    axes = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"]
    pd.DataFrame(dense, columns=["layer", "tokens", "time_us"]).to_csv(folder / "dense.csv")
    pd.DataFrame(sampled, columns=["layer", "sequences", "time_us"]).to_csv(
        folder / "per_sequence.csv.gz"
    )
    pd.DataFrame(rows, columns=axes).to_csv(folder / "attention.csv", index=False)
    if experts is not None:
        pd.DataFrame(experts, columns=["tokens", "activated_experts", "time_us"]).to_csv(
            folder / "moe.csv"
        )
    return folder
