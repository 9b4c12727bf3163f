r"""What exact searches share: kernels and rules.

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

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from optsched._internal.compiled import compiled, compiled_inside
from optsched.bounds.configurations import Problem, largest_sets, start_costs
from optsched.errors import OptschedError

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched._internal.arrays import IntArray
    from optsched.certificates.configurations import ConfigurationCertificate
    from optsched.problem.instance import Instance


_EXACT = 2**61
_DEPTHS = 24  # grid on the numbers of steps since a start for which room is tabulated


class ExactProblem(NamedTuple):
    """An instance and a certificate, as the search needs them; all costs are integers."""

    limit: int
    unit: int  # what one step of latency costs
    begin: IntArray  # first slot of each kind, and the number of slots
    requests: IntArray  # of each slot
    slots: IntArray  # (slots, 4): prompt, output, arrival, where its tokens begin in `sizes`
    regret: IntArray  # (slots, starts): cost of a start beyond that of the cheapest
    least: IntArray  # (slots, starts): least regret from this start on
    steps: IntArray  # (T, 3): what could be paid at most, price, phase
    sizes: IntArray  # (phases, tokens of all kinds)
    room: IntArray  # (phases, depths, limit + 1): largest size of young requests in so many tokens
    depth: IntArray  # index of a number of steps into `room`
    marks: IntArray  # one random number for each slot
    total: int  # the bound of the certificate, in units

    @classmethod
    def of(cls, instance: Instance, certificate: ConfigurationCertificate) -> ExactProblem:
        """Tabulate regrets and room."""
        problem = Problem.of(instance)
        unit = certificate.price_denominator * certificate.size_denominator
        reach = len(certificate.prices) + int(instance.arrivals[-1]) + int(instance.outputs.sum())
        spent = sum(certificate.prices) * max(map(max, certificate.sizes), default=0)
        if (len(instance) + problem.width) * (unit * reach + spent) >= _EXACT:
            raise OptschedError("the numbers of the certificate are too large for 64-bit integers")
        prices = np.array(certificate.prices, dtype=np.int64)
        ends = np.array(certificate.ends, dtype=np.int64)
        shape = len(ends), len(problem.tokens)
        item_sizes = np.array(certificate.sizes, dtype=np.int64).reshape(shape)
        phase = np.searchsorted(ends, np.arange(1, len(prices) + 1))
        order = np.lexsort((instance.arrivals, instance.outputs, instance.prompts))
        _, begin, kind_of = np.unique(
            np.column_stack([instance.prompts, instance.outputs])[order],
            axis=0,
            return_index=True,
            return_inverse=True,
        )
        costs = start_costs(problem, prices, phase, item_sizes, unit)
        rows = np.column_stack([instance.prompts, instance.outputs, instance.arrivals])
        group = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
        costs = costs[group[order]]
        cheapest = costs.min(axis=1)
        regret = costs - cheapest[:, None]
        least = np.minimum.accumulate(regret[:, ::-1], axis=1)[:, ::-1].copy()
        capacities = largest_sets(problem, item_sizes, problem.copies(ends))
        # The tokens of a kind lie where those of its first group do.
        outputs = instance.outputs[order[begin]]
        heads = problem.first[group[order[begin]]]
        place = np.concatenate(
            [problem.place[head : head + o] for head, o in zip(heads, outputs, strict=True)]
        )
        longest = int(outputs.max())
        grid = np.ceil(np.geomspace(1, longest, min(_DEPTHS, longest)))
        depths = np.unique(np.minimum(grid, longest).astype(np.int64))
        token = problem.token
        room = np.zeros((len(ends), len(depths), instance.memory + 1), dtype=np.int64)
        for index, steps in enumerate(depths.tolist()):
            young = problem.available(token, np.array([steps]))[0]
            for number, row in enumerate(item_sizes):
                room[number, index] = _room(problem, row, young)
        random = np.random.default_rng(0)
        return cls(
            limit=instance.memory,
            unit=unit,
            begin=np.append(begin, len(instance)),
            requests=order,
            slots=np.column_stack([rows[order], (np.cumsum(outputs) - outputs)[kind_of.ravel()]]),
            regret=regret,
            least=least,
            steps=np.column_stack([prices * capacities[phase], prices, phase]),
            sizes=np.ascontiguousarray(item_sizes[:, place]),
            room=room,
            depth=np.searchsorted(depths, np.arange(longest + 1)),
            marks=random.integers(-(2**62), 2**62, len(instance)),
            total=int(cheapest.sum()) - int(prices @ capacities[phase]),
        )


@compiled
def _room(problem: Problem, sizes: IntArray, copies: IntArray) -> IntArray:
    """Return the largest total size of items that can run together, by the tokens they may hold."""
    limit, width = problem.limit, problem.width
    best = np.full((width + 1, limit + 1), -1)
    best[0, 0] = 0
    for item in range(len(sizes)):
        tokens, left = problem.tokens[item], problem.left[item]
        if sizes[item] > 0:
            for _ in range(copies[item]):
                for count in range(width - 1, -1, -1):
                    for held in range(limit - tokens - (count + 1) * left, -1, -1):
                        if best[count, held] >= 0:
                            value = best[count, held] + sizes[item]
                            if value > best[count + 1, held + tokens]:
                                best[count + 1, held + tokens] = value
    room = np.zeros(limit + 1, dtype=np.int64)
    for held in range(limit + 1):
        room[held] = max(best[:, held].max(), room[max(held - 1, 0)])
    return room


#: The rules, as bits; jumps are in `growth`.
ACTIVE, PENDING, JUMPS = 1, 2, 4


#: What is known of each step around a clock, as rows of an array: tokens held, what is paid by
#: what runs, completions, and the place of the last step up to this one with a completion.
HELD, PAID, ENDING, PEAK = 0, 1, 2, 3


@compiled_inside
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


@compiled_inside
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


@compiled_inside
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
