"""Every policy in every world against its literal twin, or refused in one sentence."""

import numpy as np
from strategies import NAMES, SOLVED, drawn_run
from twins import twin_of

from campaign.case import Outcome, one_sentence, within
from optsched import OptschedError, run

TITLE = "twins"
SECONDS = 120


def case(seed, folder):
    """Run one policy in one world, and do the same literally."""
    rng, outcome = np.random.default_rng(seed), Outcome(inputs=1)
    instance, policy, options = drawn_run(rng, NAMES if rng.random() < 0.97 else SOLVED)
    shown = (instance.to_json(), policy, options)
    try:
        with within(SECONDS):
            found = run(instance, policy, **options)
            outcome.check(not found.check(), "infeasible:", found.check(), *shown)
            twin = twin_of(instance, policy, **options)
    except OptschedError as error:
        outcome.note("refused")
        outcome.check(one_sentence(error), "message", error)
    except Exception as error:
        outcome.check(False, f"{type(error).__name__}: {error}", *shown)
    else:
        if twin is None:
            outcome.note("ties that rounding decides, and stopped workers")
        else:
            outcome.note("equal to the twin")
            outcome.check(not twin.differs(found), *shown, twin.differs(found))
    return outcome
