"""What the words of solvers mean, through every door: the only table of them.

A proof is OPTIMAL with a bound that leaves no room, INFEASIBLE, UNBOUNDED or either; by any other
meaning a point counts, if there is one that keeps the rows. `base.conclude` checks both.
"""

from __future__ import annotations

from optsched.models.program import Stopped


def _meanings(words: dict[Stopped, str]) -> dict[str, Stopped]:
    return {word: status for status, line in words.items() for word in line.split()}


#: Model statuses of HiGHS up to 1.16. `kUnknown` covers an interrupted LP without a verdict.
HIGHS = _meanings(
    {
        Stopped.OPTIMAL: "kModelEmpty kOptimal",
        Stopped.GAP_LIMIT: "kObjectiveBound kObjectiveTarget",
        Stopped.TIME_LIMIT: "kTimeLimit",
        Stopped.ITERATION_LIMIT: "kIterationLimit kSolutionLimit",
        Stopped.MEMORY_LIMIT: "kMemoryLimit",
        Stopped.UNBOUNDED: "kUnbounded",
        Stopped.INFEASIBLE: "kInfeasible",
        Stopped.INFEASIBLE_OR_UNBOUNDED: "kUnboundedOrInfeasible",
        Stopped.INTERRUPTED: "kInterrupt kHighsInterrupt",
        Stopped.ERROR: "kLoadError kModelError kPresolveError kSolveError kPostsolveError",
        Stopped.UNKNOWN: "kNotset kUnknown",
    }
)
#: Statuses of CP-SAT; the last two only say that some limit was hit.
CP_SAT = _meanings(
    {
        Stopped.OPTIMAL: "OPTIMAL",
        Stopped.INFEASIBLE: "INFEASIBLE",
        Stopped.ERROR: "MODEL_INVALID",
        Stopped.UNKNOWN: "FEASIBLE UNKNOWN",
    }
)
#: Termination conditions of Pyomo.
PYOMO = _meanings(
    {
        Stopped.OPTIMAL: "globallyOptimal locallyOptimal optimal",
        Stopped.GAP_LIMIT: "minFunctionValue",
        Stopped.TIME_LIMIT: "maxTimeLimit",
        Stopped.ITERATION_LIMIT: "maxIterations maxEvaluations",
        Stopped.UNBOUNDED: "unbounded",
        Stopped.INFEASIBLE: "infeasible",
        Stopped.INFEASIBLE_OR_UNBOUNDED: "infeasibleOrUnbounded",
        Stopped.INTERRUPTED: "userInterrupt resourceInterrupt",
        Stopped.ERROR: "invalidProblem solverFailure internalSolverError error licensingProblems",
        Stopped.UNKNOWN: "unknown minStepLength feasible other intermediateNonInteger noSolution",
    }
)
#: What the logs of CBC and GLPK say where Pyomo has another condition, or none.
LOGS = {
    "TIME LIMIT EXCEEDED": Stopped.TIME_LIMIT,
    "Stopped on time": Stopped.TIME_LIMIT,
    "GAP TOLERANCE REACHED": Stopped.GAP_LIMIT,
    "NO PRIMAL FEASIBLE SOLUTION": Stopped.INFEASIBLE,
}
#: What the log of GLPK says of a relaxation where Pyomo has no condition.
RELAXED_LOGS = dict.fromkeys(
    ("NO DUAL FEASIBLE SOLUTION", "UNBOUNDED PRIMAL SOLUTION"), Stopped.INFEASIBLE_OR_UNBOUNDED
)
#: What solvers say where there is no answer to be had.
INFEASIBLE = (Stopped.INFEASIBLE, Stopped.INFEASIBLE_OR_UNBOUNDED)
DENIALS = (*INFEASIBLE, Stopped.UNBOUNDED)
#: Words with which a point is nothing: Pyomo's conditions, and what statuses in files hold.
NO_POINT = ("infeasible", "unbounded", "intermediateNonInteger")
NO_POINT_IN_FILES = (
    "no point",
    "infeasible",
    "unbounded",
    "empty",
    "undefined",
    "no integer solution",
)
