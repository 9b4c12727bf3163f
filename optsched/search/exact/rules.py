r"""What a node has decided that no optimum has: kernels of the exact search.

**Lemma.** If the decisions of a node imply that in each of its completions some requests can start
earlier, all others where they are, without more than M tokens at any step, then no completion of it
is optimal, and the node may be dropped.

Every request counts alike, so that an earlier start is strictly cheaper; with weights of zero a
rule could drop every optimum, each for another one. The rules cut no node that leads to an optimum,
so they combine with dominance.

Request j starts at :math:`p_j \ge a_j`, holds :math:`s_j + t - p_j` tokens at steps
:math:`p_j + 1, \dots, c_j = p_j + o_j`, and mem(t) is what all hold. A node with the clock k has
decided all starts before k: steps up to k are final, and what waits starts at k or later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched._internal.compiled import compiled

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray

#: The rules, as bits; jumps are in `growth`.
ACTIVE, PENDING, JUMPS = 1, 2, 4


#: What is known of each step around a clock, as rows of an array: tokens held, what is paid by
#: what runs, completions, and the place of the last step up to this one with a completion.
HELD, PAID, ENDING, PEAK = 0, 1, 2, 3


@compiled
def active(
    starts: npt.NDArray[Any],
    slots: IntArray,
    profile: IntArray,
    at: int,
    clock: int,
    limit: int,
) -> bool:
    """Tell whether a request could have completed by now; `at` is the place of the clock."""
    # Request j waits or runs beyond k. If it fits, without itself, in steps p' + 1 to k = p' + o_j
    # with a_j <= p', then all these are final, and later steps lose tokens only. Up to the next
    # completion of another one usage grows, so k and completions are all that has to be looked at.
    free = limit - profile[HELD, at]
    for slot in range(len(starts)):
        prompt, output, start = slots[slot, 0], slots[slot, 1], starts[slot]
        begin = clock - output
        more = prompt + output if start < 0 else start - begin  # tokens at k
        if more > free or more <= 0 or begin < slots[slot, 2]:
            continue
        first = at - output
        place = profile[PEAK, at - 1]
        while place > first:
            usage = profile[HELD, place] + prompt + place - first
            own = clock - at + place - start
            if start >= 0 and own > 0:
                usage -= prompt + own
            if usage > limit:
                break
            place = profile[PEAK, place - 1]
        if place <= first:
            return True
    return False


@compiled
def pending(
    starts: npt.NDArray[Any],
    slots: IntArray,
    held: IntArray,
    at: int,
    clock: int,
    limit: int,
    full: int,
) -> bool:
    """Tell whether a running request could have started a step earlier, whatever is to come."""
    # Request j, with a_j < p_j and s_j + 1 tokens more in step p_j than are held, needs one token
    # more in each step of p_j + 1 to c_j - 1, so that an optimum has mem(t) = M at one of these.
    # Then another one completes at t, or mem(t + 1) > M. `full` is the last such step up to the
    # clock. One to come is a completion of a running request, where memory is full or something
    # that waits may still fill it, or of one that waits and can start, run and complete beside j.
    for slot in range(len(starts)):
        start, prompt = starts[slot], slots[slot, 0]
        end = start + slots[slot, 1]
        if start <= slots[slot, 2] or end <= clock + 1 or full > start:
            continue
        known = held[at + start - clock] + prompt + 1 <= limit
        if known and not _can_fill(starts, slots, held, at, clock, limit, slot):
            return True
    return False


@compiled
def _can_fill(
    starts: npt.NDArray[Any],
    slots: IntArray,
    held: IntArray,
    at: int,
    clock: int,
    limit: int,
    slot: int,
) -> bool:
    """Tell whether memory can be full between the clock and the last step of a request."""
    least = limit
    for other in range(len(starts)):
        if starts[other] < 0:
            least = min(least, slots[other, 0])
    begin = starts[slot]
    end = begin + slots[slot, 1]
    for other in range(len(starts)):
        output = slots[other, 1]
        if starts[other] < 0:
            step = max(clock, slots[other, 2]) + output
            usage = slots[other, 0] + output + slots[slot, 0] + step - begin
            if step < end and usage <= limit:
                return True
        else:
            step = starts[other] + output
            if clock < step < end:
                free = limit - held[at + step - clock]
                if free == 0 or free > least:
                    return True
    return False
