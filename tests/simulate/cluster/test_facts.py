"""Facts of a cluster: what is refused, the clock, and the power law of the paper."""

import math

import numpy as np
import pytest
from tabled import tabled

from optsched import Cluster, Instance, run
from optsched.errors import InstanceError
from optsched.simulate.cluster import PowerLaw


@tabled()
def test_what_cannot_be_gets_one_sentence(facts, message):
    with pytest.raises(InstanceError, match=message):
        Cluster(**{"workers": 2, **facts})


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"utilisation": "much"}, "utilisation is 'much'"),
        ({"idle_watt": 500}, "idle_watt is 500 and peak_watt 400"),
        ({"exponent": 0}, "exponent is 0, but must be positive"),
    ],
)
def test_a_power_law_is_checked(facts, message):
    with pytest.raises(InstanceError, match=message):
        PowerLaw(**facts)


def test_the_heaviest_worker_draws_peak_power_and_the_others_less():
    watt = PowerLaw().watt(np.array([[100, 50, 0]]), np.array([[1, 1, 0]]), np.array([1.0]))
    assert watt[0] == pytest.approx(400 + (100 + 300 * 0.5**0.7) + 100)


def test_the_throughput_form_follows_d45_up_to_saturation():
    law = PowerLaw(utilisation="throughput", parameters=7e9, peak_flops=312e12)
    watt = law.watt(np.array([[9, 9]]), np.array([[20, 10**6]]), np.array([0.014]))
    share = 20 / 0.014 * 6 * 7e9 / 312e12 / 0.45
    assert share < 1
    assert watt[0] == pytest.approx(100 + 300 * share**0.7 + 400)


def test_the_clock_is_equation_6_and_slowness_weighs_loads():
    cluster = Cluster(2, 1, overhead_s=0.5, seconds_per_token=0.01, slowness=[1, 3])
    result = run(Instance([10, 4], [1, 2], 99), "fcfs", cluster=cluster)
    assert result.max_work.tolist() == [12, 15]  # 4 and then 5 tokens on the slow worker
    assert result.step_seconds.tolist() == pytest.approx([0.62, 0.65])
    assert result.imbalance.tolist() == [2, 15]
    assert math.isclose(result.finished_s[1], 1.27)


def test_one_worker_of_one_slot_is_said_in_singular():
    assert str(Cluster(1, 1)).startswith("1 worker of 1 slot; ")
    assert str(Cluster(2, [1, 3])).startswith("2 workers of 1 to 3 slots; ")
