"""The threshold load, where it is known in closed form."""

import pytest

from optsched import OptschedError
from optsched.experiments.regret_cells import overload_threshold


@pytest.mark.parametrize(
    ("source", "memory", "load"),
    [
        # Two unit outputs of 7 tokens per step: 14 of 20.
        ("family:equal-prompts,prompt=6,output_most=1", 20, 14 / 20),
        # One request at a time for 5 steps, 7 + ... + 11 tokens of 5 * 13.
        ("family:equal-prompts,prompt=6,output_least=5,output_most=5", 13, 45 / 65),
        # Whatever arrives fits: 20 of 20.
        ("family:equal-prompts,prompt=4,output_most=1", 20, 1.0),
    ],
)
@pytest.mark.parametrize("policy", ["mc-sf", "fcfs"])
def test_bisection_finds_the_rate_of_a_queue(source, memory, load, policy):
    found = overload_threshold(source, policy, memory=memory, horizon=8000, seeds=2)
    assert found.overloaded - found.stable <= 0.01
    # An excess of 1 % counts as overload, and chance adds to it.
    assert found.stable - 0.02 <= load <= found.overloaded
    assert found.tried[0][0] == 0.625
    assert found.policy == policy
    assert found.rate == pytest.approx(
        {7 / 10: 2.0, 45 / 65: 0.2, 1.0: 4.0}[load] * found.load / load
    )


def test_waves_make_a_policy_overloaded_below_full_load():
    waves = overload_threshold("family:equal-prompts,output_least=10", horizon=10_000, seeds=2)
    # Waves of 18 every 10 steps are 1.8 of 3.08 per step.
    assert 1.8 * 65 / 200 - 0.01 < waves.load < 0.95
    mixed = overload_threshold("family:equal-prompts", "fcfs", horizon=10_000, seeds=2)
    assert waves.load < mixed.load - 0.03
    assert mixed.to_dict()["load"] == mixed.load


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"precision": 0}, "precision is 0"),
        ({"seeds": 0}, "seeds is 0"),
        ({"horizon": 2}, "2 steps bring"),
        ({"policy": "nobody"}, "nobody"),
    ],
)
def test_bad_input_gets_one_sentence(arguments, message):
    with pytest.raises(OptschedError, match=message):
        overload_threshold(**arguments)
