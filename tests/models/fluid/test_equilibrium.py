"""The fluid equilibrium against a recursion that runs the fluid iteration by iteration."""

import math

import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from tabled import tabled

from optsched import InfeasibleError, Instance, RequestTypes, family, get_clock
from optsched.clock import BatchContent, FunctionClock, LinearClock
from optsched.errors import ClockError, InstanceError
from optsched.models import equilibrium
from optsched.workloads import read_types

LOW_DEMAND = RequestTypes([10, 10], [10, 20], [1000, 1000])
THREE = RequestTypes([20, 5, 40], [10, 30, 25], [4.0, 2.0, 3.0])
CLOCK = "affine:0.0085,2.7e-7"


def literal_batch(types, fluid):
    """What a batch with fluid[j][k] requests of type j at stage k holds and makes."""
    prefill = decode = resident = squares = held = 0.0
    for prompt, stages in zip(types.prompts.tolist(), fluid, strict=True):
        for position, amount in enumerate(stages):
            made = position + types.first_stage
            if position == 0:
                prefill += amount * prompt
                squares += amount * prompt**2
            else:
                decode += amount
                resident += amount * (prompt + made - 1)
            held += amount * (prompt + made)
    return BatchContent(prefill, decode, resident, squares, held)


def literal_fluid(types, clock, iterations):
    """Let arrivals flow in while an iteration lasts; all of them join the next one."""
    fluid = [[0.0] * stages for stages in types.stages.tolist()]
    for _ in range(iterations):
        batch = literal_batch(types, fluid)
        time = clock(batch)
        fluid = [
            [rate * time, *stages[:-1]]
            for rate, stages in zip(types.rates.tolist(), fluid, strict=True)
        ]
    return time, batch


@pytest.mark.parametrize("prefill_makes_token", [False, True])
@pytest.mark.parametrize("load", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("types", [LOW_DEMAND, THREE, RequestTypes([7], [12], [3])], ids=len)
@pytest.mark.parametrize("clock", [CLOCK, "llama-2-70b-2xa100", "llama-2-7b-a100"])
def test_the_fluid_run_step_by_step_settles_at_the_equilibrium(
    types, clock, load, prefill_makes_token
):
    types = RequestTypes(types.prompts, types.outputs, types.rates, prefill_makes_token)
    types = types.scaled(load / equilibrium(types, clock).load)
    found = equilibrium(types, clock)
    time, batch = literal_fluid(types, get_clock(clock), round(450 / (1 - load)))
    assert math.isclose(found.load, load)
    assert math.isclose(found.iteration_time, time, rel_tol=1e-6)
    assert math.isclose(found.memory, batch.held_tokens, rel_tol=1e-6)
    assert math.isclose(found.throughput * time, found.active_requests.sum())


def test_low_demand_setting():
    """Section 6.1: rho = 0.15795 for d0 = 0.0085, d1 = 2.7e-7; 0.159 with the profiled d1."""
    found = equilibrium(LOW_DEMAND, CLOCK)
    assert LOW_DEMAND.held_tokens.tolist() == [165, 420]
    assert math.isclose(found.load, 0.15795)
    assert round(equilibrium(LOW_DEMAND, "affine:0.00851366,2.71606e-7").load, 3) == 0.159
    assert math.isclose(found.memory, (found.iteration_time - 0.0085) / 2.7e-7)
    assert (found.throughput, found.output_throughput) == (32_000, 30_000)


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 50), st.floats(0.01, 100)),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
@examples(100)
def test_closed_forms_are_the_sums_over_stages(rows, prefill_makes_token):
    prompts, outputs, rates = zip(*rows, strict=True)
    types = RequestTypes(prompts, outputs, rates, prefill_makes_token)
    clock = LinearClock("all", 1.0, 0.5, 0.25, 0.125, 0.0625, 0.03125)
    for j in range(len(types)):
        fluid = [[float(i == j)] * stages for i, stages in enumerate(types.stages.tolist())]
        batch = literal_batch(types, fluid)
        assert types.held_tokens[j] == batch.held_tokens
        assert math.isclose(types.work(clock)[j], clock(batch) - clock.constant)


def test_an_overload_says_by_how_much_and_which_type():
    found = equilibrium(LOW_DEMAND.scaled(8), CLOCK)
    assert not found.stable
    assert math.isinf(found.iteration_time)
    assert math.isinf(found.memory)
    with pytest.raises(
        InfeasibleError, match=r"the load is 1.264, 0.264 above 1.*type 2 .* 0.9072"
    ):
        found.require_stable()
    assert str(found).startswith("no equilibrium: the load is 1.264")


def test_a_load_of_exactly_one_is_no_equilibrium():
    """One request per second that needs 0.1 s in each of ten iterations."""
    clock = LinearClock("tenths", constant=1, decode_requests=0.1)
    assert not equilibrium(RequestTypes([1], [10], [1]), clock).stable
    assert equilibrium(RequestTypes([1], [9], [1]), clock).stable


def test_types_of_an_instance_keep_its_memory_and_iterations():
    instance = family("chat-and-summaries", n=500, seed=3)
    exact = RequestTypes.from_instance(instance, rate=7)
    assert math.isclose(exact.rates.sum(), 7)
    assert math.isclose(exact.rates @ exact.held_tokens, 7 * instance.areas.mean())
    assert math.isclose(exact.rates @ exact.stages, 7 * instance.outputs.mean())
    for classes in (1, 3, 10):
        coarse = RequestTypes.from_instance(instance, classes, rate=7)
        assert len(coarse) == classes
        assert math.isclose(
            coarse.rates @ coarse.held_tokens, exact.rates @ exact.held_tokens, rel_tol=0.01
        )


def test_the_rate_is_that_of_the_arrivals():
    instance = Instance([1] * 5, [3] * 5, 10, arrivals=[0, 10, 20, 30, 40], seconds_per_step=0.5)
    assert RequestTypes.from_instance(instance).rates.tolist() == [0.2]
    with pytest.raises(InstanceError, match=r"; pass the requests per second \(rate\)$"):
        RequestTypes.from_instance(Instance([1], [3], 10))
    with pytest.raises(InstanceError, match="9 classes of 5 requests; choose 1 to 5"):
        RequestTypes.from_instance(instance, 9)


@tabled()
def test_bad_types_are_refused_in_one_sentence(columns, message):
    with pytest.raises(InstanceError, match=message):
        RequestTypes(*columns)


def test_a_function_is_no_clock_for_the_fluid():
    with pytest.raises(ClockError, match="clock odd: the fluid model needs a clock that is a wei"):
        equilibrium(LOW_DEMAND, FunctionClock(lambda _: 1.0, "odd"))


GOOD = """
d0 = 0.0085
d1 = 2.7e-7
memory = 20000
[[type]]
name = "short"
prompt = 10
output = 10
rate = 1000
[[type]]
prompt = 10
output = 20
rate = 1000.0
"""


def test_types_are_read_from_a_file(tmp_path):
    path = tmp_path / "types.toml"
    path.write_text(GOOD)
    types, clock, memory = read_types(path)
    assert types.names == ("short", "2")
    assert types.outputs.tolist() == [10, 20]
    assert (clock, memory) == (get_clock("affine:0.0085,2.7e-07"), 20_000)
    rest = GOOD.split("7\n", 1)[1]
    path.write_text(f'clock = "llama-2-7b-a100"\nprefill_makes_token = true\n{rest}')
    types, clock, _ = read_types(path)
    assert (types.first_stage, clock) == (1, get_clock("llama-2-7b-a100"))


@tabled((("memory = 20000", f"memory = {5000 * '9'}"), "is not valid TOML: Exceeds the limit"))
def test_a_bad_file_is_refused_in_one_sentence(tmp_path, change, message):
    path = tmp_path / "types.toml"
    path.write_text(GOOD.replace(*change))
    with pytest.raises(InstanceError, match=message):
        read_types(path)


def test_a_file_without_types_is_refused(tmp_path):
    path = tmp_path / "types.toml"
    path.write_text("memory = 3\n")
    with pytest.raises(InstanceError, match="has no types; add a table"):
        read_types(path)
    path.write_text("type = [3]\n")
    with pytest.raises(InstanceError, match="number 1 is not a table"):
        read_types(path)


def test_more_types_than_are_shown_are_counted():
    types = RequestTypes([10] * 23, [10] * 23, [1.0] * 23)
    assert str(equilibrium(types, CLOCK)).endswith("and 3 more")
