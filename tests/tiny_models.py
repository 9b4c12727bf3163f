"""Tiny linear models for all solvers."""

import numpy as np
from hypothesis import strategies as st

from optsched import LinearModel
from optsched.models import Family, Rows, Variables


def knapsack(sense="max", **changes):
    """Take items worth 5, 4, 3 of weight 4, 3, 2 within 5: the optimum is 7."""
    take = Variables(Family.of("take", item=[0, 1, 2]), [5, 4, 3], upper=1, integer=True)
    weight = Rows(Family.of("weight"), {"take": [[4, 3, 2]]}, upper=5)
    return LinearModel.build("knapsack", [take], [weight], sense=sense, **changes)


def market_split(items=30, rows=4, seed=1):
    """Make a model that no solver closes within minutes, but whose answers come at once."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(10, 100, (rows, items))
    target = weights.sum(axis=1) // 2
    pick = Variables(Family.of("pick", item=range(items)), upper=1, integer=True)
    slack = {"lower": 0.0, "upper": 10_000.0, "integer": True}
    over = Variables(Family.of("over", row=range(rows)), cost=1, **slack)
    under = Variables(Family.of("under", row=range(rows)), cost=1, **slack)
    identity = np.eye(rows)
    blocks = {"pick": weights, "over": -identity, "under": identity}
    balance = Rows(Family.of("balance", row=range(rows)), blocks, lower=target, upper=target)
    return LinearModel.build("market split", [pick, over, under], [balance])


@st.composite
def models(draw, *, whole=True):
    """Draw a model of up to five bounded columns; it may be infeasible."""
    columns, rows = draw(st.integers(1, 5)), draw(st.integers(0, 4))
    numbers = st.integers(-4, 4)

    def vector(size):
        return np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype=float)

    low = vector(columns)
    x = Variables(
        Family.of("x", item=range(columns)),
        cost=vector(columns),
        lower=low,
        upper=low + draw(st.integers(0, 3)),
        integer=True if whole else np.arange(columns) % 2 == 0,
    )
    side, width = vector(rows), draw(st.sampled_from([0, 2, np.inf]))
    lower, upper = side - width, side
    if draw(st.booleans()):
        lower, upper = -upper, -lower
    matrix = vector(rows * columns).reshape(rows, columns)
    groups = [Rows(Family.of("row", number=range(rows)), {"x": matrix}, lower, upper)]
    sense = draw(st.sampled_from(["min", "max"]))
    offset = draw(st.sampled_from([0.0, 2.0, -0.5]))
    return LinearModel.build("tiny", [x], groups, sense=sense, offset=offset)
