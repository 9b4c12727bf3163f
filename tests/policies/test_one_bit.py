"""1-bit SVF: its order by definition, and what it makes of one class and of two lengths."""

from fractions import Fraction

import numpy as np
import pytest
from effort import examples, share
from hypothesis import given
from strategies import instances

from optsched import Instance, run
from optsched.errors import PolicyError
from optsched.policies.one_bit import ONE_BIT


def literal_volume(prompt, own, outputs, border):
    """The volume of a request by the mean of its class."""
    alike = [each for each in outputs if (each > border) == (own > border)]
    mean = Fraction(sum(alike), len(alike))
    return prompt * mean + mean * (mean + 1) / 2


@given(instance=instances(max_requests=9, max_memory=40, max_output=20))
@examples(200)
def test_the_order_is_that_of_volumes_by_the_means_of_classes(instance):
    outputs = instance.outputs.tolist()
    border = sorted(outputs)[(len(outputs) - 1) // 2] if len(outputs) % 2 else np.median(outputs)
    of = [
        literal_volume(prompt, output, outputs, border)
        for prompt, output in zip(instance.prompts.tolist(), outputs, strict=True)
    ]
    order = ONE_BIT.order(instance)
    assert [float(of[request]) for request in order] == pytest.approx(sorted(map(float, of)))


def test_of_two_lengths_a_bit_says_all():
    rng = np.random.default_rng(1)
    for _ in range(share(100)):
        outputs = rng.permutation(np.repeat([2, 9], [7, 3]))
        instance = Instance(rng.integers(1, 9, 10), outputs, 30, np.sort(rng.integers(0, 9, 10)))
        told, bit = (run(instance, each).schedule for each in ("area", ONE_BIT.parsed("0.6")))
        assert bit.starts.tolist() == told.starts.tolist()


def test_of_one_length_prompts_alone_decide():
    instance = Instance([3, 1, 2], [4, 4, 4], 7)
    assert ONE_BIT.order(instance).tolist() == [1, 2, 0]


@pytest.mark.parametrize("given", ["", "x", "0", "1.5", "0.5,2"])
def test_other_shares_are_refused(given):
    with pytest.raises(PolicyError, match="with the share of the outputs that are short"):
        ONE_BIT.parsed(given)
