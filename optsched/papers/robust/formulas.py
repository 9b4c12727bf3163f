"""Robust Fig. 1 and 2: bounds of competitive ratios over all mixes of outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from optsched.papers.claims import number, shape
from optsched.papers.estimates import Estimate
from optsched.papers.robust.closed_ratios import CROSSOVER
from optsched.papers.robust.common import PAPER, ratios
from optsched.papers.robust.competitive_ratio import CompetitiveRatio
from optsched.papers.robust.latency_quotient import LatencyQuotient
from optsched.papers.target import Outcome, Target
from optsched.report.series import plot_series
from optsched.report.style import REFERENCE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

    from optsched._internal.arrays import FloatArray
    from optsched.papers.claims import Claim
    from optsched.papers.study import Study


# Fig. 1


def _printed_fit(u: Any) -> Any:
    return 0.2555 * np.log(u + 0.2793) + 1.1587


def _bounds_of(uppers: list[int]) -> list[list[float]]:
    found = [CompetitiveRatio(u) for u in uppers]
    return [
        [float(each.lower_bound), each.eigenvalue, float(each.upper_bound), each.trace_bound or 0.0]
        for each in found
    ]


def _determination(values: FloatArray, fit: FloatArray) -> float:
    """Return R2 of a fit."""
    residual = float(((values - fit) ** 2).sum())
    return 1 - residual / float(((values - values.mean()) ** 2).sum())


def _fig_1(study: Study) -> Outcome:
    fitted = study.choose(200, 1000)
    rows = [1, 2, 3, 5, 10, 20, 50, 100, 200, 300, 500, 1000]
    uppers = sorted({*range(1, fitted + 1), *rows, *study.choose([], [2000, 5000, 10_000])})
    parts = [uppers[at::10] for at in range(10)]
    found = study.map(_bounds_of, [{"uppers": part} for part in parts])
    table = pd.DataFrame(
        [
            [u, *bounds, float(_printed_fit(u))]
            for part, of_part in zip(parts, found, strict=True)
            for u, bounds in zip(part, of_part, strict=True)
        ],
        columns=["u", "at_least", "eigenvalue", "at_most", "h_u", "printed_fit"],
    ).sort_values("u", ignore_index=True)
    own, claims = _claims_of_fits(table[table["u"] <= fitted])
    at = table.set_index("u")
    # The figure shows the fit within the width of a line: 1 % of its value.
    proven = [
        number(
            f"u={u}",
            at["printed_fit"][u],
            Estimate(at["eigenvalue"][u], at["at_least"][u], at["at_most"][u]),
            within=0.01,
        )
        for u in rows
    ]
    above = shape(
        "largest ratio over the bound H_u of Theorem 4.3",
        float((table["at_most"] / table["h_u"]).max()),
        at_most=1 + 1e-12,
    )
    settings = {"fitted": f"u = 1 to {fitted}", "own fit": own}
    return Outcome(table, [*proven, *claims, above], settings)


def _claims_of_fits(table: pd.DataFrame) -> tuple[str, list[Claim]]:
    """Fit a log(u + b) + c, and return the fit in words with what the paper says of it."""
    from scipy.optimize import curve_fit

    u, values = table["u"].to_numpy(np.float64), table["eigenvalue"].to_numpy()

    def line(at: FloatArray, slope: float, shift: float, constant: float) -> FloatArray:
        return slope * np.log(at + shift) + constant

    fit, _ = curve_fit(line, u, values, p0=(0.25, 0.0, 1.1), bounds=([0, -0.999, 0], [1, 5, 5]))
    slope, shift, constant = fit
    own = _determination(values, line(u, *fit))
    printed = _determination(values, _printed_fit(u))
    shifted = _determination(values[1:], _printed_fit(u[1:] - 1))
    return f"{slope:.4f} log(u {shift:+.4f}) + {constant:.4f}", [
        shape("R2 of our own fit a log(u + b) + c", own, at_least=0.9999, paper=0.9999),
        # Fits over other ranges of u, which the paper does not name, differ by this much.
        number("slope a of the fit", 0.2555, slope, within=0.02),
        number("constant c of the fit", 1.1587, constant, within=0.02),
        number("shift b of the fit", 0.2793, shift, within=0.1),
        number("R2 of the printed fit", 0.9999, printed, within=0.0001),
        number("R2 of the printed fit read with u - 1, from u = 2", 0.9999, shifted, within=0.0001),
    ]


def _draw_fig_1(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    points = table[table["u"].isin(_spaced(table["u"].max()))]
    curves = {
        "competitive ratio, proven": points[["u", "eigenvalue"]],
        "printed fit": table[["u", "printed_fit"]],
    }
    named = [
        values.set_axis(["u", "ratio"], axis=1).assign(curve=name)
        for name, values in curves.items()
    ]
    plot_series(
        pd.concat(named),
        x="u",
        y="ratio",
        by="curve",
        xscale="log",
        xlabel="largest output u (tokens)",
        ylabel="ratio to H-SF",
        ax=axes[0],
    )


def _spaced(most: int) -> list[int]:
    return sorted({round(u) for u in np.geomspace(1, most, 25)} | {1, 2, 3, 5, most})


# Fig. 2


def _two_point(shorts: list[int], long: int) -> list[list[float]]:
    """Maximise both ratios over the shares of two outputs: Lemma 4.6, and the proof of 5.2."""
    found = []
    for short in shorts:
        quotient = LatencyQuotient(long, short)
        middle = [0] * (long - short - 1)
        alpha = short / long
        # One request of u for t of l, t a multiple of 1 / (2 long).
        counts = [(int(each), 2 * long) for each in np.linspace(0, 2 * long / alpha * 2, 161)]
        lemma = max(quotient.quotient([a, *middle, b]) for a, b in counts)
        t = np.linspace(0, 2 / alpha, 4001)
        promoted = alpha**2 * t**2 + 3 * alpha**2 * t + 2 * alpha**2 + 1
        hindsight = alpha**2 * t**2 + 2 * alpha**2 * t + 1
        found.append([alpha, float(lemma), float((promoted / hindsight).max())])
    return found


def _fig_2(study: Study) -> Outcome:
    long = study.choose(50, 200)
    shorts = list(range(1, long))
    parts = [shorts[at::4] for at in range(4)]
    cells = study.map(_two_point, [{"shorts": part, "long": long} for part in parts])
    alpha, a_min, a_l = np.array(sorted(row for cell in cells for row in cell)).T
    first = int(np.argmax(a_l > a_min))
    weight = (a_min - a_l)[first - 1] / ((a_min - a_l)[first - 1] - (a_min - a_l)[first])
    crossing = float(alpha[first - 1] + weight * (alpha[first] - alpha[first - 1]))
    claims = [
        number("where the bounds cross", CROSSOVER, crossing, within=0.005),
        number("bound of A_min as alpha tends to 0", 1.5, float(a_min[0]), within=1 / long),
        number("bound of A_l at alpha = 1/2", 1.5, float(np.interp(0.5, alpha, a_l)), within=0.01),
        shape("A_l below A_min left of it", (a_l - a_min)[alpha < 0.38].max(), at_most=0),
        shape("A_min below A_l right of it", (a_min - a_l)[alpha > 0.39].max(), at_most=0),
    ]
    table = pd.DataFrame(
        {
            "alpha": np.tile(alpha, 2),
            "policy": ["a-min"] * len(alpha) + ["a-l"] * len(alpha),
            "ratio": np.concatenate([a_min, a_l]),
        }
    )
    return Outcome(table, claims, {"u": long, "maximised": "over the shares of the two outputs"})


def _draw_fig_2(table: pd.DataFrame, axes: Sequence[Axes]) -> None:
    ratios(by="policy")(table, axes)
    axes[0].axvline(CROSSOVER, **REFERENCE)


TARGETS = (
    Target(
        "robust-fig-1",
        "the competitive ratio of A_min grows like the logarithm of u",
        f"{PAPER}, Fig. 1",
        _fig_1,
        _draw_fig_1,
        remark=(
            "The printed fit is one off: it fits where it is read with u - 1. The slope falls to "
            "1/4 (0.2518 between u = 100,000 and 1,000,000). The largest eigenvalue is the maximum "
            "over mixes for every u, as B^-1 A has no negative entry."
        ),
    ),
    Target(
        "robust-fig-2",
        "bounds of A_min and A_l for outputs that are l or u cross at 0.382",
        f"{PAPER}, Fig. 2",
        _fig_2,
        _draw_fig_2,
        remark="Both curves are maximised over the shares of the two outputs, not their formulas.",
    ),
)
