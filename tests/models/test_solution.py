"""What a solution claims, and what it does not."""

import html
import pickle
import re
from fractions import Fraction

import numpy as np
import pytest

from optsched import InfeasibleError, Solution
from optsched.errors import SolverError
from optsched.models.program import Stopped, next_cost


def answer(**changes):
    parts = {
        "status": Stopped.OPTIMAL,
        "solver": "Fake 1.0",
        "seconds": 0.5,
        "values": [1.0, 2.0],
        "objective": 22.0,
        "bound": 22.0,
        "step": 1.0,
    }
    return Solution(**(parts | changes))


def test_an_answer_on_time_out_and_a_time_out_without_one_differ():
    with_answer = answer(status=Stopped.TIME_LIMIT, bound=20.2)
    without = answer(status=Stopped.TIME_LIMIT, values=None)
    assert with_answer.has_answer
    assert not without.has_answer
    assert without.objective is None
    assert without.gap is None
    assert without.bound == 22


@pytest.mark.parametrize("missing", [np.inf, -np.inf, np.nan, None])
def test_missing_numbers_are_none(missing):
    assert answer(bound=missing).bound is None
    assert not answer(bound=missing).proven_optimal


@pytest.mark.parametrize(
    ("objective", "bound", "step", "sense", "proven"),
    [
        (22, 21.2, 1, "min", True),  # rounded up
        (22, 21, 1, "min", False),
        (22, 21.2, None, "min", False),
        (22, 22 - 1e-12, None, "min", False),  # without a step nothing is forgiven
        (22, 20.5, 2, "min", True),
        (22, 22.7, 1, "max", True),
        (22, 23.2, 1, "max", False),
        (0.3, 0.25, 0.1, "min", True),
        (10_000_000, 9_999_999.4, 1, "min", True),
        (2.0**53, 2.0**53 - 1, 1, "min", False),
        (3e10 + 39.4, 3e10 + 38.9, 2.0**-51, "min", False),
    ],
)
def test_proof_follows_from_objective_bound_and_step(objective, bound, step, sense, proven):
    solution = answer(objective=objective, bound=bound, step=step, sense=sense)
    assert solution.proven_optimal is proven
    assert (solution.gap == 0) >= (proven and step is not None)


def test_bounds_move_to_the_next_value_that_the_objective_can_take():
    for bound, step, sense, moved in (
        (Fraction(213, 10), 1, "min", 22),
        (Fraction(213, 10), 1, "max", 21),
        (Fraction(-1, 2), 1, "min", 0),
        (Fraction(1, 3), Fraction(1, 8), "min", Fraction(3, 8)),
        (Fraction(1, 3), None, "min", Fraction(1, 3)),
    ):
        assert next_cost(bound, step and Fraction(step), sense) == moved


def test_what_is_known_without_rounding_decides_and_a_tolerance_never_proves():
    large = answer(objective=2.0**60, bound=2.0**60, distance=Fraction(1))
    assert not large.proven_optimal
    assert large.gap > 0
    assert answer(objective=2.0**60, bound=2.0**60 - 256, distance=Fraction(0)).proven_optimal
    assert not answer(status=Stopped.WITHIN_TOLERANCE).proven_optimal


def test_gap_is_a_share_of_the_objective():
    assert answer(bound=11).gap == pytest.approx(0.5)
    assert answer(objective=0, bound=-3).gap == np.inf
    assert answer(objective=0, bound=0).gap == 0


def test_require_gives_the_solution_or_raises_one_sentence():
    assert answer().require() is not None
    with pytest.raises(InfeasibleError) as none:
        answer(
            status=Stopped.INFEASIBLE, values=None, bound=None, raw_status="Infeasible"
        ).require()
    said = "model: infeasible after 0.50 s (Fake 1.0), without an answer; Infeasible"
    assert str(none.value) == said
    with pytest.raises(
        SolverError, match=r"time limit after .*, without an answer; allow more time"
    ):
        answer(status=Stopped.TIME_LIMIT, values=None).require()
    with pytest.raises(SolverError, match=r"not proven optimal; allow more time$") as open_gap:
        answer(bound=20).require(optimal=True)
    assert "\n" not in str(open_gap.value)


def test_arrays_are_read_only_and_survive_a_process_boundary():
    solution = answer(duals=[0.5], raw_status="Optimal")
    assert pickle.loads(pickle.dumps(solution)) == solution
    assert solution != answer()
    with pytest.raises(ValueError, match="read-only"):
        solution.values[0] = 3


def test_it_prints_what_is_known_and_says_what_is_not():
    assert str(answer(status="time limit", bound=11, raw_status="Time limit reached")) == (
        "model: time limit after 0.50 s (Fake 1.0)\n"
        "  objective 22\n"
        "  bound     11, gap 50.00%\n"
        "  solver    Time limit reached"
    )


def test_a_notebook_shows_what_is_printed_and_repr_is_one_line():
    solution = answer(raw_status="<slow>")
    assert "<slow>" not in solution._repr_html_()
    cells = ["objective", "22", "bound", "22, proven optimal", "solver", html.escape("<slow>")]
    assert re.findall("<td[^>]*>([^<]*)</td>", solution._repr_html_()) == cells
    assert "\n" not in repr(solution)
