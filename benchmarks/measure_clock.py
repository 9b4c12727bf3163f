"""Times single batches of a Llama-shaped model with random weights, for `LinearClock.fit`.

`measure_clock.py SHAPE batches.csv [DEVICE]` runs chunks of prompts and decodes at several contexts
through all layers in PyTorch and writes a row per batch: what was in it, and the median of its wall
seconds. Linear layers see all tokens of a batch at once; prompts attend to themselves, and each
decode to its context. Left out: CUDA graphs, an engine's own kernels, paging in blocks, sampling
and the CPU work of a scheduler, so a clock fitted to it is one of this program, not of an engine.

The shape `toy` runs in seconds on a CPU and says nothing about any hardware.
"""

from __future__ import annotations

import csv
import itertools
import statistics
import sys
import time
from typing import NamedTuple

import torch
from torch.nn.functional import rms_norm, scaled_dot_product_attention, silu

FIELDS = ("prefill_tokens", "decode_requests", "resident_tokens", "squared_prompts", "seconds")


class Shape(NamedTuple):
    """Sizes of a model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int


class Grid(NamedTuple):
    """What batches are measured: prompt tokens, decodes, tokens in the cache of each decode."""

    prefills: tuple[int, ...]
    decodes: tuple[int, ...]
    contexts: tuple[int, ...]

    def batches(self):
        """Yield (prefill tokens, decodes, context)."""
        for prefill in self.prefills[1:]:
            yield prefill, 0, 0
        for prefill, decodes, context in itertools.product(
            self.prefills, self.decodes, self.contexts
        ):
            yield prefill, decodes, context


SHAPES = {
    "toy": (Shape(2, 64, 4, 2, 16, 128, 256), Grid((0, 8, 32), (1, 4), (16, 64))),
    "llama-3-8b": (
        Shape(32, 4096, 32, 8, 128, 14_336, 128_256),
        Grid(
            (0, 16, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048),
            (1, 4, 16, 32, 64, 128),
            (128, 512, 1024, 2048),
        ),
    ),
}


class Model:
    """Layers with random weights, and caches of keys and values."""

    def __init__(self, shape, grid, device):
        self.shape, self.device = shape, device
        self.dtype = torch.float32 if device == "cpu" else torch.bfloat16
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        sizes = {
            "qkv": (queries + 2 * keys, shape.hidden),
            "out": (shape.hidden, queries),
            "gates": (2 * shape.inner, shape.hidden),
            "down": (shape.hidden, shape.inner),
        }
        self.layers = [
            {name: self._random(size) for name, size in sizes.items()} for _ in range(shape.layers)
        ]
        self.last = self._random((shape.vocabulary, shape.hidden))
        # All layers read the same cache, which is larger than what a GPU keeps near its units.
        most = (max(grid.decodes), shape.kv_heads, max(grid.contexts), shape.head)
        self.keys, self.values = self._random(most), self._random(most)

    def _random(self, size):
        return torch.randn(size, dtype=self.dtype, device=self.device) * 0.02

    @torch.inference_mode()
    def run(self, prefill, decodes, context):
        """Run a batch through all layers; return the scores of the tokens it makes."""
        shape = self.shape
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        states = self._random((prefill + decodes, shape.hidden))
        for layer in self.layers:
            q, k, v = (
                part.view(prefill + decodes, -1, shape.head)
                for part in (rms_norm(states, (shape.hidden,)) @ layer["qkv"].T).split(
                    (queries, keys, keys), dim=-1
                )
            )
            mixed = [self.attend(q, k, v, prefill)] if prefill else []
            if decodes:
                mixed.append(self.attend_to_cache(q[prefill:], k[prefill:], v[prefill:], context))
            states = states + torch.cat(mixed).reshape(-1, queries) @ layer["out"].T
            gate, up = (rms_norm(states, (shape.hidden,)) @ layer["gates"].T).chunk(2, dim=-1)
            states = states + (silu(gate) * up) @ layer["down"].T
        return states[max(prefill - 1, 0) :] @ self.last.T

    def attend(self, q, k, v, count):
        """Let a prompt attend to itself."""
        parts = (part[:count].transpose(0, 1)[None] for part in (q, k, v))
        mixed = scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)
        return mixed[0].transpose(0, 1)

    def attend_to_cache(self, q, k, v, context):
        """Let each decode attend to what its request holds, its own token stored last."""
        count = len(q)
        keys, values = self.keys[:count, :, :context], self.values[:count, :, :context]
        keys[:, :, -1], values[:, :, -1] = k, v
        return scaled_dot_product_attention(q[:, :, None], keys, values, enable_gqa=True)[:, :, 0]


def seconds(call, device, repeats=7):
    """Return the median wall time of a call, after two that are not counted."""
    times = []
    for run in range(repeats + 2):
        if device != "cpu":
            torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        if run >= 2:
            times.append(time.perf_counter() - began)
    return statistics.median(times)


def rows(name, device):
    """Yield a row of `FIELDS` per batch."""
    shape, grid = SHAPES[name]
    model = Model(shape, grid, device)
    for prefill, decodes, context in grid.batches():
        took = seconds(lambda b=(prefill, decodes, context): model.run(*b), device)
        yield prefill, decodes, decodes * context, prefill**2, took


def main(name, path, device="cpu"):
    """Measure all batches of a shape and write them."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(FIELDS)
        writer.writerows(rows(name, device))


if __name__ == "__main__":
    main(*sys.argv[1:])
