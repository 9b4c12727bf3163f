"""Every policy in every world: literal checks, twins, and the bounds that are shown beside it."""

import functools

import numpy as np
from worlds import cells, examine

from campaign.case import Outcome, within

SECONDS = 120
QUICK = 50  # runs of a cell with the bound in closed form only, and no twin


@functools.cache
def _cells():
    return cells()


def case(seed, folder):
    """Examine one cell in full once, and its bounds many times."""
    rng, outcome = np.random.default_rng(seed), Outcome()
    cell = _cells()[int(rng.integers(len(_cells())))]
    for full in (True, *[False] * QUICK):
        drawn = int(rng.integers(2**62))
        outcome.inputs += 1
        try:
            with within(SECONDS):
                how = {"twins": full, "effort": "auto" if full else "closed-form"}
                what, wrong = examine(cell, np.random.default_rng(drawn), **how)
        except Exception as error:
            what, wrong = "crashed", [f"{type(error).__name__}: {error}"]
        outcome.note(what)
        outcome.check(not wrong, *wrong[:2], cell, drawn)
        if what == "refused" and not full:
            break
    return outcome
