"""The prefix cache of vLLM: which blocks of KV cache hold what, and which are given away first.

A full block has a name, that of all tokens up to its end, from when it is scheduled until it is
taken for something else. A request that is admitted goes on behind the longest run of blocks that
it finds, used by others or free. Several blocks may have one name; the oldest is found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.arrays import records
from optsched._internal.compiled import MINUS_ONE, ONE, ZERO, compiled

if TYPE_CHECKING:
    from optsched._internal.arrays import IntArray, Records
    from optsched.problem.instance import Instance

_BLOCK = (
    *("before", "after"),  # in the ring of free blocks, from block 0, the one taken first first
    "users",
    "name",
    *("older", "newer"),  # in its bucket of names
    "owner",  # the place of whoever is planned to hold it longest
)
_UNNAMED = int(np.iinfo(np.int64).min)
_FAR = 2**62
NAMES, _SLOTS, _STACK = range(3)  # names that can be found, free slots, the first free slot
_MIX = np.uint64(0x9E3779B97F4A7C15)


class Prefixes(NamedTuple):
    """Ids of the blocks of requests, in whose equality they and all before them are equal."""

    ids: IntArray
    begins: IntArray  # where those of each request begin
    covered: IntArray  # tokens of each request that they tell of
    tokens: int  # of a block with an id
    most: int  # tokens of the longest request

    @classmethod
    def of(cls, instance: Instance) -> Prefixes:
        """Return those of an instance; requests without ids share nothing."""
        most, given, size = int(instance.peaks.max()), instance.hash_ids, instance.hash_block
        none = np.zeros(len(instance), dtype=np.int64)
        if given is None or size is None:
            return cls(none[:0], none, none, 1, most)
        lengths = np.fromiter(map(len, given), np.int64, len(given))
        ids = np.concatenate(given).astype(np.int64, copy=False)
        if ids.min(initial=0) < 0 or ids.max(initial=0) >= _FAR // (size + 2):
            _, ids = np.unique(ids, return_inverse=True)  # names are made of small numbers
        # The last id of a prompt says nothing of the output that follows it in its block.
        prompts, covered = instance.prompts, lengths * size
        covered = np.where(lengths == -(-prompts // size), np.minimum(prompts, covered), covered)
        return cls(ids, np.cumsum(lengths) - lengths, covered, size, most)


class Cache(NamedTuple):
    """All blocks of an engine."""

    blocks: Records
    buckets: IntArray  # the oldest and the newest block of each, 0 for none
    held: IntArray  # blocks of the running requests, by slot
    counters: IntArray
    prefixes: Prefixes


def new_cache(usable: int, block_size: int, seqs: int, prefixes: Prefixes) -> Cache:
    """Return an empty cache."""
    ring = np.arange(usable + 1)
    blocks = records(
        usable + 1, _BLOCK, before=ring - 1, after=(ring + 1) % (usable + 1), name=_UNNAMED
    )
    blocks.before[0] = usable
    buckets = np.zeros(2 << int(usable).bit_length(), dtype=np.int64)
    held = np.zeros((seqs, min(usable, -(-prefixes.most // block_size))), dtype=np.int64)
    counters = np.concatenate([[0, seqs], np.arange(seqs)])
    return Cache(blocks, buckets, held, counters, prefixes)


@compiled
def _name(cache: Cache, index: int, number: int, block_size: int) -> int:
    """Name a block of a request; one without an id has a name of its own, below zero."""
    ids, begins, covered, tokens, most = cache.prefixes
    if (number + 1) * block_size <= covered[index]:
        of_id = ((number + 1) * block_size - 1) // tokens
        inside = number - of_id * tokens // block_size
        return int(ids[begins[index] + of_id] * (tokens // block_size + 2) + inside)
    return -1 - (index * (most + 1) + number)


@compiled
def _bucket(cache: Cache, name: int) -> int:
    """Return where the oldest block of a bucket stands; the newest stands behind it."""
    mixed = (np.uint64(name) * _MIX) >> np.uint64(32)
    return int(mixed & np.uint64(len(cache.buckets) // 2 - 1)) * 2


@compiled
def _oldest(cache: Cache, name: int) -> int:
    """Return the oldest block of a name, or 0."""
    block = cache.buckets[_bucket(cache, name)]
    while block > 0 and cache.blocks[block].name != name:
        block = cache.blocks[block].newer
    return int(block)


@compiled
def find(cache: Cache, index: int, known: int, block_size: int) -> tuple[int, int]:
    """List the blocks that a request finds where it would hold them; count all and free ones."""
    blocks, counters, found, free = cache.blocks, cache.counters, ZERO, ZERO
    held = cache.held[counters[_STACK + counters[_SLOTS] - 1]]
    while found < (known - 1) // block_size:  # one token at least is computed
        block = _oldest(cache, _name(cache, index, found, block_size))
        if block == 0:
            break
        held[found] = block
        free += blocks[block].users == 0
        found += 1
    return found, free


@compiled
def reuse(cache: Cache, request: Any, found: int) -> None:
    """Let a request that is admitted use the blocks that it has found."""
    blocks, held, counters = cache.blocks, cache.held, cache.counters
    counters[_SLOTS] -= 1
    request.slot = counters[_STACK + counters[_SLOTS]]
    for number in range(found):
        block = held[request.slot, number]
        if blocks[block].users == 0:
            _leave_ring(blocks, block)
        blocks[block].users += 1
    request.named = found


@compiled
def count_foreign(
    cache: Cache,
    requests: Records,
    running: IntArray,
    ends: IntArray,
    found: int,
    foreign: IntArray,
    block_size: int,
) -> None:
    """Count the blocks of each request that another one holds longer; the last has found some."""
    blocks, held, counters, last = cache.blocks, cache.held, cache.counters, len(ends) - 1
    for step in range(3):
        for at in range(len(ends)):
            request = requests[running[at]]
            slot, count = request.slot, request.room // block_size
            if at == last:
                slot, count = counters[_STACK + counters[_SLOTS] - 1], found
            for number in range(count):
                block = blocks[held[slot, number]]
                if step == 0:
                    block.owner = MINUS_ONE
                elif step == 2:
                    foreign[at] += block.owner != at
                elif block.owner < 0 or ends[at] > ends[block.owner]:
                    block.owner = at


@compiled
def _leave_ring(blocks: Records, block: int) -> None:
    """Take a block out of those that are free."""
    before, after = blocks[block].before, blocks[block].after
    blocks[before].after, blocks[after].before = after, before


@compiled
def _unname(cache: Cache, block: int) -> None:
    """Let a block be found no more."""
    blocks, buckets = cache.blocks, cache.buckets
    taken = blocks[block]
    name, bucket = taken.name, _bucket(cache, taken.name)
    if taken.older > 0:
        blocks[taken.older].newer = taken.newer
    else:
        buckets[bucket] = taken.newer
    if taken.newer > 0:
        blocks[taken.newer].older = taken.older
    else:
        buckets[bucket + 1] = taken.older
    taken.name = _UNNAMED
    cache.counters[NAMES] -= _oldest(cache, name) == 0


@compiled
def publish(cache: Cache, index: int, request: Any, full: int, block_size: int) -> None:
    """Name the first blocks of a request, which are full."""
    blocks, buckets = cache.blocks, cache.buckets
    while request.named < full:
        name = _name(cache, index, request.named, block_size)
        cache.counters[NAMES] += _oldest(cache, name) == 0
        block, bucket = cache.held[request.slot, request.named], _bucket(cache, name)
        newest = buckets[bucket + 1]
        blocks[block].name, blocks[block].older, blocks[block].newer = name, newest, ZERO
        if newest > 0:
            blocks[newest].newer = block
        else:
            buckets[bucket] = block
        buckets[bucket + 1] = block
        request.named += 1


@compiled
def extend(cache: Cache, index: int, request: Any, room: int, tokens: int, block_size: int) -> None:
    """Let a request hold blocks for all its room, and name those that its next tokens fill."""
    blocks = cache.blocks
    for number in range(room // block_size, request.room // block_size):
        block = blocks[0].after
        _leave_ring(blocks, block)
        if blocks[block].name != _UNNAMED:
            _unname(cache, block)
        blocks[block].users = ONE
        cache.held[request.slot, number] = block
    known = request.prompt + request.made  # else it is in flight
    full = min(request.computed + tokens, known) // block_size
    publish(cache, index, request, full, block_size)


@compiled
def give_back(cache: Cache, request: Any, count: int) -> int:
    """Free the blocks of a request, the last one first; return how many are free now."""
    blocks, counters = cache.blocks, cache.counters
    free = ZERO
    for number in range(count - 1, -1, -1):
        block = cache.held[request.slot, number]
        blocks[block].users -= 1
        if blocks[block].users > 0:
            continue
        free += 1
        # What cannot be found is taken first, what can be found last.
        before = blocks[0].before if blocks[block].name != _UNNAMED else ZERO
        after = blocks[before].after
        blocks[block].before, blocks[block].after = before, after
        blocks[before].after = blocks[after].before = block
    counters[_STACK + counters[_SLOTS]] = request.slot
    counters[_SLOTS] += 1
    request.slot = MINUS_ONE
    request.named = ZERO
    return free
