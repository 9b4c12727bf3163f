"""Columns of one's own: where they land, what they are called, and recipes against brute force."""

import numpy as np
import pytest
from brute_force import schedules
from effort import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from strategies import instances
from tiny_models import knapsack, models

from optsched import HindsightProgram, Instance, LinearModel, SolveParams, solve
from optsched.errors import ModelError, SolverError
from optsched.models import Family


@given(models(), st.data())
@examples(50)
def test_columns_stand_beside_those_that_were_there(model, data):
    rows, count = len(model.row_lower), data.draw(st.integers(1, 3))
    numbers = st.lists(st.integers(-3, 3), min_size=rows * count, max_size=rows * count)
    block = np.array(data.draw(numbers), dtype=float).reshape(rows, count)
    cost = data.draw(st.lists(st.integers(-3, 3), min_size=count, max_size=count))
    sides = {"cost": cost, "lower": -1, "upper": 2, "integer": True}
    found = model.with_columns("own", block, **sides)
    assert np.array_equal(found.matrix.toarray(), np.hstack([model.matrix.toarray(), block]))
    assert found.cost.tolist() == [*model.cost, *cost]
    assert found.col_lower.tolist() == [*model.col_lower, *[-1] * count]
    assert found.col_upper.tolist() == [*model.col_upper, *[2] * count]
    assert found.integer.tolist() == [*model.integer, *[True] * count]
    by_family = model.with_columns("own", {"row": sparse.csr_array(block)}, **sides)
    assert by_family == found
    index = {"column": range(count)} if count > 1 else {}
    assert model.with_columns(Family.of("own", **index), block, **sides) == found
    for method in ("highs", "cp-sat"):
        assert solve(found, method=method).objective == pytest.approx(brute_optimum(found))


def brute_optimum(model):
    """Return the best of all whole points, None where there is none."""
    bounds = zip(model.col_lower, model.col_upper, strict=True)
    ranges = [np.arange(low, high + 1) for low, high in bounds]
    points = np.stack([grid.ravel() for grid in np.meshgrid(*ranges)], axis=1)
    sums = points @ model.matrix.toarray().T
    inside = ((sums >= model.row_lower) & (sums <= model.row_upper)).all(axis=1)
    costs = (points @ model.cost + model.offset)[inside]
    return None if not len(costs) else costs.min() if model.sense == "min" else costs.max()


def test_a_matrix_of_one_family_alone_is_answered_by_how_to_name_families():
    model = knapsack().with_columns("fee", cost=-1)
    with pytest.raises(ModelError, match=r'should have \(1, 4\), or be given by family: {"take": '):
        model.with_rows("r", [1, 1, 1])


def test_a_number_fills_a_block_and_a_list_is_its_one_row_or_column():
    model = knapsack().with_columns("fee", cost=-1).with_columns("late", upper=np.ones(2))
    assert model.column_names()[3:] == ["fee", "late[0]", "late[1]"]
    assert not model.matrix[:, [3, 4, 5]].nnz
    both = model.with_rows("r", {"take": np.eye(3)[:2], "fee": -1, "late": 2}, upper=0)
    assert both.matrix.toarray()[1:].tolist() == [[1, 0, 0, -1, 2, 2], [0, 1, 0, -1, 2, 2]]
    single = both.with_columns("x", {"weight": 7, "r": [8, 9]})
    assert single.matrix.toarray()[:, -1].tolist() == [7, 8, 9]
    several = both.with_columns("y", {"weight": [1, 2]}, upper=[3, 4])
    assert several.matrix.toarray()[:, -2:].tolist() == [[1, 2], [0, 0], [0, 0]]
    assert knapsack().with_rows("all", 1, upper=1).matrix.toarray()[1].tolist() == [1, 1, 1]
    empty = LinearModel.build("empty", [], []).with_columns("x", cost=[1, 2])
    assert (empty.matrix.shape, empty.column_names()) == ((0, 2), ["x[0]", "x[1]"])


REFUSED = [
    (lambda: knapsack().with_columns("x", {"rows": 1}), "x: there are no rows 'rows', only weight"),
    (lambda: knapsack().with_columns("x", [1, 2]), r"the matrix has shape \(2, 1\), but should"),
    (lambda: knapsack().with_columns("x", "one"), "columns 'x': the coefficients are no table"),
    (lambda: knapsack().with_columns(3), "columns are called 3, but need a name or a Family"),
    (lambda: knapsack().with_columns("x", cost=[1, 2], upper=[1, 2, 3]), "family x.*: 2 numbers"),
    (lambda: knapsack().with_columns("take"), "two families of columns are called 'take'"),
    (lambda: knapsack().with_columns("x", cost=np.inf), "column x: the cost is inf"),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(make, message):
    with pytest.raises(ModelError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)


def test_the_advice_of_cp_sat_about_columns_works():
    model = knapsack().with_columns("fee", {"weight": -1}, cost=-2)
    with pytest.raises(SolverError, match=r"fee may be fractional.*use method='highs'"):
        solve(model, method="cp-sat")
    assert solve(model, method="highs").objective == 7


class Recipes:
    """The recipes of docs/models.md for one instance, and what each asks of latencies."""

    def __init__(self, instance):
        self.instance, self.program = instance, HindsightProgram(instance, 12, aggregate=False)
        self.model, n = self.program.to_linear(), len(instance)
        self.last, self.n = self.program.horizon, n
        self.request, self.step = self.model.variables[0].keys.T
        self.latency = self.step + instance.outputs[self.request] - instance.arrivals[self.request]
        self.by_request = self.latency * (self.request == np.arange(n)[:, None])
        self.tenant = np.arange(n) % 2

    def minimax(self):
        worst = self.model.with_objective(0)
        worst = worst.with_columns("worst", cost=1, upper=self.last, integer=True)
        return worst.with_rows("reach", {"start": self.by_request, "worst": -1}, upper=0), max

    def percentile(self):
        n, last = self.n, self.last
        most = self.model.with_objective(0)
        most = most.with_columns("most", cost=1, upper=last, integer=True)
        most = most.with_columns("late", upper=np.ones(n), integer=True)
        blocks = {"start": self.by_request, "most": -1, "late": -last * np.eye(n)}
        most = most.with_rows("reach", blocks, upper=0)
        spared = n // 3
        model = most.with_rows("few", {"late": np.ones(n)}, upper=spared)
        return model, lambda latencies: sorted(latencies)[-1 - spared]

    def tenants(self):
        members = np.bincount(self.tenant)
        whose = self.tenant[self.request] == np.arange(len(members))[:, None]
        model = self.model.with_rows("tenant", self.latency * whose, upper=6 * members)

        def kept(latencies):
            sums = np.bincount(self.tenant, latencies)
            return sum(latencies) if (sums <= 6 * members).all() else None

        return model, kept

    def precedence(self):
        first, last = self.request == 0, self.request == self.n - 1
        least = self.instance.outputs[-1]
        model = self.model.with_rows("after", self.step * first - self.step * last, lower=least)
        return model, None


@pytest.mark.few
@given(instances(max_requests=3, max_memory=8, max_arrival=2, max_output=3))
@examples(50)
def test_recipes_have_the_optimum_of_all_schedules(instance):
    recipes = Recipes(instance)
    starts = np.array(list(schedules(instance, 12)))
    latencies = (starts + instance.outputs - instance.arrivals).tolist()
    for recipe in (recipes.minimax, recipes.percentile, recipes.tenants, recipes.precedence):
        model, value = recipe()
        if value is None:
            waited = starts[:, 0] >= starts[:, -1] + instance.outputs[-1]
            values = [sum(each) for each, late in zip(latencies, waited, strict=True) if late]
        else:
            values = [found for each in latencies if (found := value(each)) is not None]
        best = min(values, default=None)
        for method in ("highs", "cp-sat"):
            solution = solve(model, method=method)
            assert solution.objective == best
            assert solution.proven_optimal == (best is not None)
            if best is not None:
                assert recipes.program.read(solution.values).check() == []


def test_a_start_covers_columns_of_ones_own():
    recipes = Recipes(Instance([2, 1, 1], [2, 3, 3], memory=6))
    model, _ = recipes.minimax()
    best = solve(model, method="cp-sat")
    point = recipes.program.write_point(recipes.program.read(best.values))
    start = np.append(point, best.objective)
    assert solve(model, params=SolveParams(start=start)).objective == best.objective
    with pytest.raises(SolverError, match=r"reach\[\d\] is .*; reach\[\d\] is .*; correct it"):
        solve(model, params=SolveParams(start=np.append(point, 0)))
