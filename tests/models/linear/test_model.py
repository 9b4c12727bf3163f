"""LinearModel: what it refuses, how it names, prints, checks points and changes."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from brute_force import optimum
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from optsched import LinearModel
from optsched.errors import ModelError
from optsched.models import Family, Rows, Variables
from optsched.models.linear import whole_numbers


def knapsack():
    take = Variables(Family.of("take", item=[0, 1, 2]), [5, 4, 3], upper=1, integer=True)
    weight = Rows(Family.of("weight"), {"take": [[4, 3, 2]]}, upper=5)
    return LinearModel.build("knapsack", [take], [weight], sense="max", offset=1)


@st.composite
def models(draw):
    """Draw any small model: one or two families each, mixed bounds, mixed integers."""
    finite = st.integers(-5, 5).map(float)

    def bounds(count):
        low, high = [], []
        for _ in range(count):
            pair = sorted([draw(finite), draw(finite)])
            low.append(draw(st.sampled_from([pair[0], -np.inf])))
            high.append(draw(st.sampled_from([pair[1], np.inf])))
        return low, high

    def families(name, count):
        cut = draw(st.integers(0, count))
        parts = [Family.of(f"{name}_a", i=range(cut))]
        return (*parts, Family.of(f"{name}_b", i=range(count - cut), j=range(count - cut)))

    columns, rows = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    entries = draw(st.lists(finite, min_size=rows * columns, max_size=rows * columns))
    (col_lower, col_upper), (row_lower, row_upper) = bounds(columns), bounds(rows)
    return LinearModel(
        cost=draw(st.lists(finite, min_size=columns, max_size=columns)),
        matrix=sparse.csr_array(np.array(entries).reshape(rows, columns)),
        row_lower=row_lower,
        row_upper=row_upper,
        col_lower=col_lower,
        col_upper=col_upper,
        integer=draw(st.lists(st.booleans(), min_size=columns, max_size=columns)),
        offset=draw(finite),
        sense=draw(st.sampled_from(["min", "max"])),
        variables=families("x", columns),
        rows=families("r", rows),
    )


@given(models(), st.data())
def test_violations_and_objective_equal_a_literal_loop(model, data):
    values = st.sampled_from([-3.0, -1.0, 0.0, 0.5, 1.0, 2.0, 5.0])
    count = len(model.cost)
    point = data.draw(st.lists(values, min_size=count, max_size=count))
    matrix = model.matrix.toarray()
    expected = set()
    for j, name in enumerate(model.column_names()):
        if not model.col_lower[j] <= point[j] <= model.col_upper[j]:
            expected.add(name)
        if model.integer[j] and point[j] != round(point[j]):
            expected.add(name)
    for i, name in enumerate(model.row_names()):
        if not model.row_lower[i] <= sum(matrix[i] * point) <= model.row_upper[i]:
            expected.add(name)
    assert {breach.name for breach in model.violations(point)} == expected
    total = sum(c * x for c, x in zip(model.cost, point, strict=True)) + model.offset
    assert model.objective(point) == pytest.approx(total)


@given(models())
def test_names_agree_one_by_one_and_all_at_once(model):
    assert model.column_names() == [model.column_name(j) for j in range(len(model.cost))]
    assert model.row_names() == [model.row_name(i) for i in range(len(model.row_lower))]
    columns = [name for family in Family.parse(model.column_names("()")) for name in family.names()]
    assert columns == model.column_names()


@given(models(), st.data())
def test_same_as_forgets_order_and_nothing_else(model, data):
    count = len(model.cost)
    model = replace(model, variables=(Family.of("x", i=range(count)),))
    order = data.draw(st.permutations(range(count)))
    shuffled = replace(
        model,
        cost=model.cost[order],
        matrix=model.matrix[:, order],
        col_lower=model.col_lower[order],
        col_upper=model.col_upper[order],
        integer=model.integer[order],
        variables=(Family.of("x", position=order),),
        name="shuffled",
    )
    assert model.same_as(shuffled)
    assert not model.same_as(shuffled.with_objective(shuffled.cost + 1, shuffled.offset))
    assert not model.same_as(shuffled.fix([0], 17))
    assert not model.same_as(replace(shuffled, integer=~shuffled.integer))
    assert not model.same_as(replace(shuffled, matrix=2 * shuffled.matrix)) or not model.matrix.nnz
    renamed = (Family.of("other", i=range(len(model.row_lower))),)
    assert not model.same_as(replace(shuffled, rows=renamed))


@given(models())
def test_a_model_equals_its_copy_by_pickle_and_no_other(model):
    copy = pickle.loads(pickle.dumps(model))
    assert copy == model
    assert model.with_objective(model.cost + 1, model.offset) != model
    assert not np.array_equal(model.relax().integer, model.integer) or not model.integer.any()
    assert model != "model"


def test_arrays_are_frozen_and_the_input_is_left_alone():
    matrix = sparse.csr_array((np.array([1.0, 0.0, 2.0]), [1, 0, 1], [0, 3]), shape=(1, 2))
    cost = np.ones(2)
    model = LinearModel(cost, matrix, [0], [9], [0, 0], [1, 1], [False, False])
    assert (model.matrix.data.tolist(), model.matrix.indices.tolist()) == ([3.0], [1])
    assert matrix.nnz == 3
    assert cost.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        model.cost[0] = 2
    assert model.column_names() == ["column[0]", "column[1]"]


def test_blocks_land_in_the_columns_of_their_families():
    x, y = Variables(Family.of("x", i=[0, 1])), Variables(Family.of("y"), cost=7, upper=2)
    both = Rows(Family.of("both", i=[3, 4]), {"y": [[5], [0]], "x": [[1, 2], [3, 4]]}, lower=[1, 2])
    none = Rows(Family.of("none"), {}, upper=0)
    model = LinearModel.build("blocks", [x, y], [both, none])
    assert model.matrix.toarray().tolist() == [[1, 2, 5], [3, 4, 0], [0, 0, 0]]
    assert model.row_names() == ["both[3]", "both[4]", "none"]
    assert model.columns_of("y").tolist() == [2]
    assert model.rows_of("both", i=4).tolist() == [1]
    assert model.col_upper.tolist() == [np.inf, np.inf, 2]


def test_each_change_moves_the_optimum_as_it_should():
    model = knapsack()
    assert optimum(model) == 4 + 3 + 1  # items 1 and 2, and the offset
    tight = model.with_rows(Family.of("less"), [[4, 3, 2]], upper=4)
    assert optimum(tight) == 5 + 1  # item 0 alone
    assert optimum(tight.relax()) == pytest.approx(3 + 4 * 2 / 3 + 1)  # by value per weight
    assert optimum(model.fix(model.columns_of("take", item=0), 1)) == 6
    family = Family.of("not_both")
    assert optimum(model.with_rows(family, [[0, 1, 1]], upper=1)) == 6
    assert optimum(model.with_rows(family, sparse.csr_array([[0, 1, 1]]), upper=1)) == 6
    assert optimum(model.with_objective([1, 1, 1])) == 2
    assert optimum(model.with_objective(-1, sense="min")) == -2


def test_rows_need_no_more_than_a_name():
    model = knapsack()
    one = model.with_rows("not_both", [0, 1, 1], upper=1)
    assert optimum(one) == 6
    assert one.row_names()[-1] == "not_both"
    two = model.with_rows("pairs", [[1, 1, 0], [0, 1, 1]], upper=[2, 1])
    assert two.row_names()[-2:] == ["pairs[0]", "pairs[1]"]
    by_family = model.with_rows("not_both", {"take": [[0, 1, 1]]}, upper=1)
    assert by_family == one


def test_tolerance_is_relative_for_large_bounds_and_absolute_for_whole_numbers():
    x = Variables(Family.of("x"), lower=0, upper=1e6, integer=True)
    model = LinearModel.build("scale", [x], [])
    assert model.violations([1e6 + 0.5], tolerance=1e-6)[0].kind == "whole"
    assert model.violations([1e6 + 2], tolerance=1e-6)[0].kind == "at most"
    assert model.violations([1e6 + 1], tolerance=1e-6) == []
    assert str(model.violations([-3.5])[1]) == "x is -3.5, but must be a whole number"
    assert str(model.violations([-3])[0]) == "x is -3, but must be at least 0"


def test_it_prints_sizes_of_mixed_and_single_families():
    x = Variables(Family.of("x", i=[0, 1]), lower=-np.inf, integer=[True, False])
    text = str(LinearModel.build("mixed", [x], [Rows(Family.of("r"), {"x": [[1, 0]]}, lower=1)]))
    assert text.splitlines() == [
        "mixed: min over 2 columns (1 integer), 1 row, 1 nonzero",
        "  column  x[i]                       2  mixed, -inf..inf",
        "  row     r                          1  1 nonzero",
    ]
    assert repr(knapsack()) == "<LinearModel 'knapsack': 1 rows, 3 columns, 3 nonzeros>"


REFUSED = [
    (lambda: Family.of("two words"), "a family is called 'two words', but only letters, digits"),
    (lambda: Family("x", ("i",), np.zeros((2, 2))), r"family x: the keys have shape \(2, 2\)"),
    (lambda: Family.parse(["x y"]), "'x y' is not a name such as 'start\\[3,17\\]'"),
    (lambda: Family.of("x", i=[0]).positions(j=0), r"x\[i\] has no index 'j'"),
    (lambda: knapsack().columns_of("start"), "there is no family 'start'; known: take"),
    (lambda: knapsack().with_objective(np.nan), r"column take\[0\]: the cost is nan"),
    (lambda: knapsack().with_objective(1, np.inf), "knapsack: the offset is inf"),
    (lambda: knapsack().with_objective(1, sense="best"), "sense is 'best', but must be"),
    (
        lambda: knapsack().with_rows(Family.of("r"), [[0, np.inf, 0]]),
        r"row r: the coefficient of take\[1\] is inf, but must be finite",
    ),
    (
        lambda: knapsack().with_rows(Family.of("r"), [[0, 1, 0]], lower=3, upper=2),
        "row r: no number lies between its lower bound 3 and its upper bound 2",
    ),
    (
        lambda: knapsack().fix([1], np.inf),
        r"column take\[1\]: no number lies between its lower bound inf",
    ),
    (lambda: knapsack().fix([1], np.nan), r"column take\[1\]: no number lies between"),
    (
        lambda: knapsack().with_rows(Family.of("r"), [[1, 2]]),
        r"shape \(1, 2\), but should have \(1, 3\)",
    ),
    (lambda: knapsack().with_rows("r", [1, 2]), r"rows r: the matrix has shape \(1, 2\)"),
    (
        lambda: knapsack().with_rows("r", "one"),
        "rows 'r': the coefficients are no table of numbers",
    ),
    (lambda: knapsack().with_rows([1, 1, 1], "r"), "but need a name or a Family"),
    (lambda: knapsack().with_rows("r", {"x": [1]}), "there are no variables 'x', only take"),
    (
        lambda: knapsack().with_rows(Family.of("weight"), [[1, 2, 3]]),
        "two families of rows are called 'weight'",
    ),
    (lambda: knapsack().objective([1, 2]), r"the point has shape \(2,\), but there are 3"),
    (lambda: knapsack().violations([1, np.nan, 0]), r"column take\[1\]: the point has no value"),
    (lambda: knapsack().violations([1, 0, -np.inf]), r"column take\[2\]: the point is -inf there"),
    (
        lambda: LinearModel([1], np.ones((1, 2)), [0], [1], [0, 0], [1, 1], [True, True]),
        r"cost has shape \(1,\), but the matrix \(1 x 2\) asks for \(2,\)",
    ),
    (
        lambda: LinearModel(
            [1], [[1]], [0], [1], [0], [1], [True], rows=(Family.of("r", i=[0, 1]),)
        ),
        "the families name 2 rows, but it has 1",
    ),
    (
        lambda: LinearModel.build("m", [], [Rows(Family.of("r"), {"x": [[1]]})]),
        "rows r: there are no variables 'x'",
    ),
    (
        lambda: LinearModel.build(
            "m", [Variables(Family.of("x"))], [Rows(Family.of("r"), {"x": [[1, 2]]})]
        ),
        r"rows r: the block of x has shape \(1, 2\), but should have \(1, 1\)",
    ),
    (
        lambda: LinearModel.build("m", [Variables(Family.of("x"), cost=[1, 2])], []),
        r"family x: 2 numbers of shape \(2,\) were given for its 1 members",
    ),
    (lambda: whole_numbers([0.5], Family.of("x")), "the point is fractional: x is 0.5"),
    (lambda: whole_numbers([np.nan], Family.of("x")), "the point is fractional: x is nan"),
    (
        lambda: whole_numbers([], Family.of("x")),
        r"the point has shape \(0,\), but the program has 1",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_is_wrong_is_refused_in_one_sentence(make, message):
    with pytest.raises(ModelError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
