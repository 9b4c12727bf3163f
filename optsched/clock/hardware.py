"""Facts of models and their GPUs: how many tokens fit, and batches timed by times of kernels."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from optsched._internal.arguments import checked
from optsched._internal.aside import untimed
from optsched._internal.files import read_object
from optsched.errors import ClockError, InstanceError, require, require_known

if TYPE_CHECKING:
    import pandas as pd

    from optsched._internal.arrays import FloatArray, IntArray
    from optsched._internal.files import JSON

T = TypeVar("T")

#: What changes the size of weights or of a token in the KV cache in ways that are not known here.
_UNKNOWN = (
    *("quantization_config", "kv_lora_rank", "n_routed_experts", "first_k_dense_replace"),
    *("shared_expert_intermediate_size", "sliding_window_pattern", "attention_chunk_size"),
    *("compression_config", "quantization", "full_attention_interval", "hybrid_override_pattern"),
    *("attn_layer_period",),
)
_NESTED = ("text_config", "llm_config", "language_config", "thinker_config")  # of several modes
#: The limit M of Jaillet, Sorted-F and Robust for Llama-2-70B on two A100. It follows from no
#: reading of the formula printed there, which gives 7,629 tokens (8,192 with GB as 2^30 bytes).
PAPER_MEMORY = 16_492


@dataclass(frozen=True)
class ModelFacts:
    """The facts of a model that determine its memory, each above 0.

    Parameters
    ----------
    name
        Name in tables and messages.
    parameters, layers
        Number of weights, and of transformer layers.
    kv_heads, head_size
        Key-value heads per layer, fewer than query heads where queries share them; numbers per
        head.
    bytes_per_number
        Bytes of a weight and of a number in the KV cache: 2 for 16-bit formats.

    Examples
    --------
    >>> MODELS["llama-2-70b"].kv_bytes_per_token
    327680
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_size: int
    bytes_per_number: float = 2

    def __post_init__(self) -> None:
        for field in ("parameters", "layers", "kv_heads", "head_size", "bytes_per_number"):
            value = getattr(self, field)
            if not 0 < value < math.inf:
                raise InstanceError(f"model {self.name}: {field} is {value!r}, but must be above 0")

    @classmethod
    def from_config(cls, path: str | Path) -> ModelFacts:
        """Read the facts of a decoder from its config.json, as published with its weights."""
        content, where = read_object(path, InstanceError, "a model's config.json")
        levels = [content]
        while inner := next((each for key in _NESTED if (each := levels[-1].get(key))), None):
            require(inner, dict, f"{where}: a nested config", "an object", InstanceError)
            levels.append(inner)
            content = content | {key: each for key, each in inner.items() if each is not None}

        def number(*names: str, default: int | None = None) -> int:
            found = next((content[name] for name in names if content.get(name)), default)
            if not isinstance(found, int):
                raise InstanceError(f"{where}: {names[0]} is {found!r}, but must be a whole number")
            return found

        odd = [name for name in _UNKNOWN if any(level.get(name) for level in levels)]
        if content.get("sliding_window") and content.get("use_sliding_window", True):
            odd.append("sliding_window")
        odd += sorted({*content.get("layer_types", ())} - {"full_attention"})
        if odd:
            raise InstanceError(
                f"{where} has {', '.join(odd)}, for which the memory is not known; pass --memory"
            )
        hidden, layers = number("hidden_size"), number("num_hidden_layers")
        heads = number("num_attention_heads")
        kv_heads = number("num_key_value_heads", default=heads)
        size = number("head_dim", default=hidden // heads)
        experts = number("num_experts", "num_local_experts", default=1)
        inner = number("moe_intermediate_size", "intermediate_size")
        vocabulary = number("vocab_size") * (1 if content.get("tie_word_embeddings") else 2)
        attention = 2 * hidden * size * (heads + kv_heads)
        layer = attention + experts * 3 * hidden * inner + (experts > 1) * hidden * experts
        parameters = layers * (layer + 2 * hidden) + (vocabulary + 1) * hidden
        wide = content.get("torch_dtype", content.get("dtype")) == "float32"
        name = Path(path).parent.name or "config"
        return cls(name, parameters, layers, kv_heads, size, 4 if wide else 2)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of the key and the value of one token in all layers."""
        numbers = 2 * self.layers * self.kv_heads * self.head_size
        return math.ceil(numbers * self.bytes_per_number)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights."""
        return math.ceil(self.parameters * self.bytes_per_number)


def packaged(name: str) -> JSON:
    """Return data of the package."""
    text = resources.files("optsched").joinpath(f"data/{name}.json").read_text("utf-8")
    return cast("JSON", json.loads(text))


def _sized(gpu: str) -> int | None:
    """Return the bytes that a text such as 24GiB says; None where it says none."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?)(G|Gi)B", gpu)
    return size and int(float(size[1]) * (2**30 if size[2] == "Gi" else 10**9))


_FACTS = packaged("hardware")
#: Published facts of some models, by name.
MODELS = {name: ModelFacts(name, **facts) for name, facts in _FACTS["models"].items()}
#: Bytes of memory of some GPUs, by name.
GPU_BYTES = {name: cast("int", _sized(size)) for name, size in _FACTS["gpus"].items()}


@checked(InstanceError)
def memory_tokens(
    model: str | ModelFacts, gpu: str | int, gpus: int = 1, share: float = 1.0
) -> int:
    """Compute the tokens that fit beside the weights of a model.

    Parameters
    ----------
    model
        Facts of the model, a name in `MODELS`, or the path of its config.json.
    gpu, gpus
        Bytes of memory of one GPU, a name in `GPU_BYTES`, or a size such as 24GiB; and the number
        of GPUs that share the model.
    share
        Share of the memory that weights and KV cache may take; the rest is for activations.

    Raises
    ------
    InstanceError
        If the weights alone do not fit, a number is invalid, or a name is unknown.

    Examples
    --------
    >>> memory_tokens("llama-2-70b", "a100-80gb", gpus=2, share=0.9)
    50859

    The formula printed in the papers: 20 GB left, 80 layers of 8192 numbers, none shared.

    >>> printed = ModelFacts("printed", 70_000_000_000, 80, 64, 128)
    >>> memory_tokens(printed, 80_000_000_000, gpus=2), PAPER_MEMORY
    (7629, 16492)
    """
    facts, gpu_bytes = model_facts(model), _bytes_of(gpu)
    if not (gpu_bytes > 0 and gpus >= 1 and 0 < share <= 1):
        raise InstanceError(
            f"{gpus} GPUs with {gpu_bytes} bytes and a share of {share}: bytes must be above 0, "
            "GPUs at least 1 and the share above 0 and at most 1"
        )
    free = int(gpus * gpu_bytes * share) - facts.weight_bytes
    tokens = free // facts.kv_bytes_per_token
    if tokens < 1:
        raise InstanceError(
            f"{facts.name} does not fit: its weights take {facts.weight_bytes:,} of "
            f"{int(gpus * gpu_bytes * share):,} bytes; use larger GPUs, or at least "
            f"{facts.weight_bytes // int(gpu_bytes * share) + 1} of them"
        )
    return tokens


def model_facts(model: str | ModelFacts) -> ModelFacts:
    """Look the facts of a model up by its name or its config.json, or take them as they are."""
    if isinstance(model, ModelFacts):
        return model
    is_file = model.endswith(".json")
    return ModelFacts.from_config(Path(model)) if is_file else _named("model", model, MODELS)


def _bytes_of(gpu: str | int) -> int:
    if isinstance(gpu, int):
        return gpu
    size = _sized(gpu)
    return _named("GPU", gpu, GPU_BYTES) if size is None else size


def vllm_defaults(gpu: str | int) -> dict[str, int]:
    """Return what vLLM serves with on a GPU unless it is told: requests at once, tokens a batch."""
    held, seqs, tokens = _bytes_of(gpu), 256, 2048
    if held >= 160 * 2**30:
        seqs, tokens = 1024, 16_384
    elif held >= 70 * 2**30 and not str(gpu).startswith("a100"):
        seqs, tokens = 1024, 8192
    return {"max_num_seqs": seqs, "max_num_batched_tokens": tokens}


def _named(what: str, name: str, known: dict[str, T]) -> T:
    require_known(what, name, known, InstanceError)
    return known[name]


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
    expert_ranks: int = 1,
    count: int = 4000,
    seed: int = 1,
) -> pd.DataFrame:
    """Draw batches as an engine forms them, and sum the times of their kernels.

    A batch runs each kernel of a layer once per layer (the norm twice), those outside of layers
    once, attention over the prompt and the contexts, and what samples once per sequence; times are
    interpolated linearly in each count.

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
        GPUs that share the model, between which each layer reduces its activations twice; its
        hidden size; and of their link the seconds per transfer and the bytes per second.
    overhead
        Seconds of each batch in which no kernel runs.
    expert_ranks
        Engines, each with attention of its own, that share the experts. If there are several, the
        time is that of what each does alone; `shared_batches` has the rest.
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
    if expert_ranks == 1 and any(path.glob("moe.csv*")):
        time += layers * _experts(_read(path, "moe"), tokens, 1)
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


@checked(ClockError)
def shared_batches(
    folder: str | Path,
    layers: int,
    expert_ranks: int,
    hidden: int,
    *,
    link_latency: float = 0.0,
    link_bandwidth: float = float("inf"),
) -> pd.DataFrame:
    r"""Return the times of what engines that share experts do together, by their tokens.

    Of :math:`T` tokens of all :math:`G` ranks each takes :math:`k` of :math:`E` experts at random,
    so that each rank finds :math:`(E / G) (1 - (1 - k / E)^T)` of its own activated, by
    :math:`T k / G` tokens; the kernel takes as long as for :math:`T / G` tokens by themselves. Each
    layer gathers the activations of all ranks before and scatters their sums behind, which takes
    twice the latency of the link, and twice :math:`T (G - 1) / G` activations by its bandwidth.

    Parameters
    ----------
    folder, layers, hidden, link_latency, link_bandwidth
        As for `kernel_batches`; the folder has a moe.csv.
    expert_ranks
        Engines that share the experts, from 2 on.

    Returns
    -------
    DataFrame
        A row per batch, as `kernel_batches` returns; contexts take no time.

    Raises
    ------
    ClockError
        If there is no moe.csv, or there is one rank.
    """
    import pandas as pd

    if expert_ranks < 2 or layers < 1:
        raise ClockError(
            f"{expert_ranks} ranks share the experts of {layers} layers: there must be at least 2 "
            "ranks and 1 layer"
        )
    most = expert_ranks * _CHUNK
    tokens = np.geomspace(1, most, 2000).astype(np.int64)
    time = layers * _experts(_read(Path(folder), "moe"), tokens, expert_ranks)
    sent = tokens * hidden * _BYTES * (expert_ranks - 1) / expert_ranks
    time += 2e6 * layers * (link_latency + sent / link_bandwidth)
    none = np.zeros_like(tokens)
    columns = (tokens, none, none, none, time * 1e-6)
    names = "prefill_tokens decode_requests resident_tokens squared_prompts seconds"
    return pd.DataFrame(dict(zip(names.split(), columns, strict=True)))


def _drawn(
    rng: np.random.Generator, count: int, memory: int
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Draw chunks of up to four prompts, what the first has behind it, decodes and contexts."""

    def log_uniform(least: int, most: IntArray | int) -> IntArray:
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
    table: pd.DataFrame, squares: IntArray, prefill: IntArray, decodes: IntArray, context: IntArray
) -> FloatArray:
    """Interpolate attention; several prompts count as the one chunk of as much work."""
    with untimed():
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


def _experts(table: pd.DataFrame, tokens: IntArray, ranks: int) -> FloatArray:
    """Interpolate a mixture of experts over ranks; each token takes its experts at random."""
    chosen, experts = table["activated_experts"].min(), table["activated_experts"].max()
    sizes = np.unique(table["tokens"])
    activated = experts / ranks * (1 - (1 - chosen / experts) ** (ranks * sizes))
    times = [
        np.interp(active, part["activated_experts"], part["time_us"])
        for active, (_, part) in zip(activated, table.groupby("tokens"), strict=True)
    ]
    interpolated: FloatArray = np.interp(tokens / ranks, sizes, times)
    return interpolated


def _pivot(path: Path, name: str) -> pd.DataFrame:
    """Return the times of kernels, a column for each, by the count of that file."""
    table = _read(path, name)
    by_count = table.pivot_table("time_us", table.columns[1], "layer").dropna()  # all were timed
    if by_count.empty:
        raise ClockError(f"{path}, {name}.csv: no {table.columns[1]} has the times of all kernels")
    return by_count


def _read(path: Path, name: str) -> pd.DataFrame:
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
