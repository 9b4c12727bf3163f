"""A back end in one file: SciPy's interface to HiGHS."""

from optsched.models.program import Stopped
from optsched.solvers import Answer, Capabilities

CAPABILITIES = Capabilities("scipy", "SciPy", starts=False, interrupts=False)

STATUS = {0: Stopped.OPTIMAL, 1: Stopped.TIME_LIMIT, 2: Stopped.INFEASIBLE, 3: Stopped.UNBOUNDED}


def load():
    """Import what the solver needs; the process that children are forked from does it once."""
    import scipy.optimize

    return scipy.optimize


def solve(model, options, start, reporter):
    """Solve a linear model and report what SciPy claims."""
    scipy = load()
    left = reporter.remaining(options.time_limit)
    sign = 1 if model.sense == "min" else -1
    found = scipy.milp(
        sign * model.cost,
        integrality=model.integer.astype(int),
        bounds=scipy.Bounds(model.col_lower, model.col_upper),
        constraints=scipy.LinearConstraint(model.matrix, model.row_lower, model.row_upper),
        options={} if left is None else {"time_limit": left},
    )
    bound = getattr(found, "mip_dual_bound", None)
    bound = None if bound is None else sign * bound + model.offset
    status = STATUS.get(found.status, Stopped.UNKNOWN)
    return Answer(status, "SciPy", found.message, found.x, bound)
