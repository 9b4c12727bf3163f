"""Batches timed by the measured times of their kernels, for `LinearClock.fit`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from optsched._internal.arguments import checked
from optsched.errors import ClockError

if TYPE_CHECKING:
    import pandas as pd

    from optsched._internal.arrays import FloatArray, IntArray

_ONCE = ("embedding", "final_layernorm")  # in a batch, the others in each layer
_LONGEST = 4096  # tokens of a context, and of what was prefilled of a prompt earlier
_CHUNK = 2048  # tokens of a batch
_SEQS = 256
_BYTES = 2  # of an activation
_AXES = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
_FILES = {
    "dense": ("layer", "tokens", "time_us"),
    "per_sequence": ("layer", "sequences", "time_us"),
    "attention": (*_AXES, "time_us"),
    "moe": ("tokens", "activated_experts", "time_us"),
}


@checked(ClockError)
def kernel_batches(
    folder: str | Path,
    layers: int,
    *,
    memory: int = 500_000,
    ranks: int = 1,
    hidden: int | None = None,
    link_latency: float = 0.0,
    link_bandwidth: float = float("inf"),
    overhead: float = 0.0,
    count: int = 4000,
    seed: int = 1,
) -> pd.DataFrame:
    r"""Draw batches as an engine forms them, and sum the times of their kernels.

    A batch of :math:`T` tokens runs each kernel of a layer once per layer (the norm twice), those
    outside of layers once, attention over the prompt and the contexts, and what samples once per
    sequence; times are interpolated linearly in each count. Between `ranks` GPUs each layer reduces
    its activations twice.

    Parameters
    ----------
    folder
        Kernel times in microseconds, as LLMServingSim's profiler writes them: dense.csv (layer,
        tokens, time_us), per_sequence.csv (layer, sequences, time_us), attention.csv
        (prefill_chunk, kv_prefill, n_decode, kv_decode, time_us) and, for a mixture of experts,
        moe.csv (tokens, activated_experts, time_us); packed with gzip or not.
    layers
        Transformer layers of the model.
    memory
        Tokens of KV cache that a batch holds at most.
    ranks, hidden, link_latency, link_bandwidth
        GPUs that share the model, its hidden size, and of their link the seconds per transfer and
        the bytes per second.
    overhead
        Seconds of each batch in which no kernel runs.
    count, seed
        Number of batches, and the seed of their contents.

    Returns
    -------
    DataFrame
        A row per batch, with the columns that `LinearClock.fit` reads.

    Raises
    ------
    ClockError
        If a file is missing or is not in this format.
    """
    import pandas as pd

    if layers < 1 or ranks < 1 or (ranks > 1 and hidden is None):
        raise ClockError(
            f"{layers} layers on {ranks} GPUs: both must be at least 1, and several GPUs need the "
            "hidden size of the model (hidden)"
        )
    path = Path(folder)
    rng = np.random.default_rng(seed)
    chunks, history, decodes, context = _drawn(rng, count, memory)
    tokens, prefill = chunks.sum(axis=1) + decodes, chunks.sum(axis=1)
    squares = (chunks**2).sum(axis=1) + 2 * history * chunks[:, 0]
    dense = _pivot(path, "dense")
    once = dense.columns.isin(_ONCE)
    runs = np.where(once, 1, layers) * np.where(dense.columns == "layernorm", 2, 1)
    dense_us = (dense * runs).sum(axis=1)
    time = np.interp(tokens, dense.index, dense_us)
    sampled = _pivot(path, "per_sequence").sum(axis=1)
    time += np.interp(decodes + (chunks > 0).sum(axis=1), sampled.index, sampled)
    time += layers * _attention(_read(path, "attention"), squares, prefill, decodes, context)
    if any(path.glob("moe.csv*")):
        time += layers * _experts(_read(path, "moe"), tokens)
    if ranks > 1 and hidden is not None:
        sent = tokens * hidden * _BYTES * 2 * (ranks - 1) / ranks  # around a ring
        time += 2e6 * layers * (link_latency + sent / link_bandwidth)
    return pd.DataFrame(
        {
            "prefill_tokens": prefill,
            "decode_requests": decodes,
            "resident_tokens": decodes * context,
            "squared_prompts": squares,
            "seconds": overhead + time * 1e-6,
        }
    )


def _drawn(rng: Any, count: int, memory: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Draw chunks of up to four prompts, what the first has behind it, decodes and contexts."""

    def log_uniform(least: int, most: Any) -> IntArray:
        drawn: FloatArray = np.exp(rng.uniform(np.log(least), np.log(most), size))
        return drawn.astype(np.int64)

    size = 8 * count
    decodes, context = log_uniform(1, _SEQS + 1), log_uniform(64, _LONGEST)
    most = _CHUNK - decodes + 1
    prefill = np.where(rng.random(size) < 0.5, log_uniform(16, most), rng.integers(16, most))
    prefill[rng.random(size) < 0.5] = 0
    prompts = rng.integers(1, 5, size)
    cut = rng.dirichlet(np.ones(4), size) * (np.arange(4) < prompts[:, None])
    chunks = (prefill[:, None] * cut / cut.sum(axis=1, keepdims=True)).astype(np.int64)
    chunks[:, 0] += prefill - chunks.sum(axis=1)
    history = rng.integers(0, _LONGEST, size) * (rng.random(size) < 0.2) * (prefill > 0)
    fits = np.flatnonzero(decodes * context + prefill + history <= memory)[:count]
    if len(fits) < count:
        raise ClockError(f"memory is {memory}, which hardly any batch fits; pass that of the GPU")
    return chunks[fits], history[fits], decodes[fits], context[fits]


def _attention(
    table: pd.DataFrame,
    squares: IntArray,
    prefill: IntArray,
    decodes: IntArray,
    context: IntArray,
) -> FloatArray:
    """Interpolate attention; several prompts count as the one chunk of as much work."""
    from scipy.interpolate import RegularGridInterpolator

    chunk = np.minimum(prefill, np.sqrt(squares))
    behind = np.where(prefill > 0, (squares - chunk**2) / np.maximum(2 * chunk, 1), 0)
    points = np.column_stack([chunk, behind, decodes, context]).astype(np.float64)
    found = np.zeros(len(points))
    sizes = table[list(_AXES)].astype(np.int64)
    grid = table[((sizes & (sizes - 1)) == 0).all(axis=1)]  # powers of two
    for mixed in (False, True):
        axes = _AXES if mixed else _AXES[2:]
        part = grid[((grid["prefill_chunk"] > 0) == mixed) & (grid["n_decode"] > 0)]
        part = part.sort_values(list(axes))
        values = [np.unique(part[axis]).astype(np.float64) for axis in axes]
        shape = tuple(map(len, values))
        if len(part) != np.prod(shape) or not len(part):
            raise ClockError(
                "attention.csv is no full grid: each chunk needs all contexts and decodes, in "
                "powers of two"
            )
        times = part["time_us"].to_numpy().reshape(shape)
        look = RegularGridInterpolator(values, times, bounds_error=False, fill_value=None)
        rows = (prefill > 0) == mixed
        found[rows] = look(points[rows][:, -len(axes) :])
    return found


def _experts(table: pd.DataFrame, tokens: IntArray) -> FloatArray:
    """Interpolate a mixture of experts; each token takes its experts at random."""
    chosen, experts = table["activated_experts"].min(), table["activated_experts"].max()
    sizes = np.unique(table["tokens"])
    activated = experts * (1 - (1 - chosen / experts) ** sizes)
    times = [
        np.interp(active, part["activated_experts"], part["time_us"])
        for active, (_, part) in zip(activated, table.groupby("tokens"), strict=True)
    ]
    interpolated: FloatArray = np.interp(tokens, sizes, times)
    return interpolated


def _pivot(path: Path, name: str) -> pd.DataFrame:
    """Return the times of kernels, a column for each, by the count of that file."""
    table = _read(path, name)
    by_count = table.pivot_table("time_us", table.columns[1], "layer").dropna()  # all were timed
    if by_count.empty:
        raise ClockError(f"{path}, {name}.csv: no {table.columns[1]} has the times of all kernels")
    return by_count


def _read(path: Path, name: str) -> pd.DataFrame:
    """Read a table, checking its columns."""
    import pandas as pd

    files = sorted(path.glob(f"{name}.csv*"))
    if not files:
        raise ClockError(
            f"{path} has no {name}.csv; a folder of kernel times has dense.csv, per_sequence.csv "
            "and attention.csv"
        )
    columns = list(_FILES[name])
    try:
        table = pd.read_csv(files[0], usecols=columns)[columns]
    except (OSError, ValueError, EOFError) as error:
        raise ClockError(f"{files[0]} needs the columns {', '.join(columns)}: {error}") from None
    numbers = table.drop(columns="layer", errors="ignore")
    kinds = numbers.dtypes.map(lambda kind: kind.kind)
    if not kinds.isin(["i", "u", "f"]).all() or not (numbers >= 0).all(axis=None):
        raise ClockError(f"{files[0]}: all but names must be numbers of at least 0")
    return table
