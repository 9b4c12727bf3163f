"""Models as MPS and LP files with readable names, for solvers of any make; no digit is lost."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import compress, pairwise, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
import scipy

from optsched._internal.arguments import checked
from optsched._internal.arrays import FloatArray, IntArray, require_nonzeros
from optsched._internal.files import write_whole
from optsched.errors import ModelError, SolverError
from optsched.models.linear import Family, LinearArrays, LinearModel
from optsched.solvers.backends import base, highs
from optsched.solvers.backends.words import NO_POINT_IN_FILES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt


_ENTRIES = (b"ROWS", b"COLUMNS", b"RHS", b"RANGES", b"BOUNDS")  # sections of an MPS file
_RESERVED = re.compile(
    r"(?i)st|free|inf|infinity|end|bounds?|bin(ary|aries)?|gen(eral|erals)?|int(egers?)?|"
    r"min(imi[sz]e|imum)?|max(imi[sz]e|imum)?|sos|semi|e\d*"
)
_SIDES = ("_lower", "_upper")  # LP files hold a row with two bounds as two rows
_CHECKS = ("Integer", "Karush-Kuhn-Tucker", "End")  # what follows the tables of GLPK
_UNSAID = "no point"  # where the status alone does not say so
#: First lines of what has no names, or none that are read.
_UNREAD = {
    "Number of columns and rows": "raw output of HiGHS (style -1)",
    "c Problem:": "raw output of GLPK or HiGHS (style 2), which numbers columns",
    "{": "JSON",
    "<?xml": "XML, as CPLEX writes it",
}
_ADVICE = "have the solver write names and values (docs/how-to/solver.md)"
_SMALLEST = 1e-12  # coefficient that HiGHS reads
_ENDLESS = 1e30  # what MPS files call infinite
_NEGATED = "_to_be_maximised_with_costs_negated"  # at the end of their names


@checked(SolverError)
def write_model(model: LinearModel, path: str | Path, start: npt.ArrayLike | None = None) -> None:
    """Write a model to a file, and a point to start from beside it.

    Parameters
    ----------
    model
        The model.
    path
        Ends in ".mps" (free format; names such as ``start[3,17]``; of a maximum all costs are
        negated, as its name then says: some solvers always minimise) or in ".lp" (``start(3,17)``,
        because LP files give brackets a meaning; GLPK reads none with a constant in its objective).
    start
        A point of the model, such as `program.write_point(schedule)`, shape (columns,). It goes
        into a file that ends in ".sol" instead, which HiGHS (``--read_solution_file``), and into
        one that ends in ".mst", which Gurobi and SCIP take.

    Raises
    ------
    SolverError
        If the start is no point of the model, the path has another ending, or the name of a family
        is a keyword of LP files.

    Examples
    --------
    >>> import tempfile
    >>> from optsched.models.linear import Family, LinearModel, Rows, Variables
    >>> take = Variables(Family.of("take", item=[0, 1]), [1 / 3, 4], upper=1, integer=True)
    >>> weight = Rows(Family.of("weight"), {"take": [[4, 3]]}, upper=5)
    >>> model = LinearModel.build("knapsack", [take], [weight], sense="max")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_model(model, f"{folder}/knapsack.lp")
    ...     print(Path(folder, "knapsack.lp").read_text().splitlines()[1])
    ...     read_model(f"{folder}/knapsack.lp").same_as(model)
     objective: 0.3333333333333333 take(0) + 4 take(1)
    True
    """
    require_nonzeros(model.matrix.nnz, "in a file", SolverError)
    ending = ending_of(path)
    lines = {".mps": _mps_lines, ".lp": _lp_lines}[ending](model)
    write_whole(path, "\n".join([*lines, ""]))
    if start is None:
        return
    point = np.asarray(start, dtype=np.float64)
    if point.shape != model.cost.shape or not np.isfinite(point).all():
        raise SolverError(f"the start must be {len(model.cost)} finite numbers, one per column")
    names = model.column_names("()" if ending == ".lp" else "[]")
    values = [f"{name} {value}" for name, value in zip(names, _numbers(point), strict=True)]
    objective = f"Objective {float(model.cost @ point) + model.offset!r}"
    whole = ["Model status", "Unknown", "", "# Primal solution values", "Feasible", objective]
    whole += [f"# Columns {len(values)}", *values, "# Rows 0", ""]
    write_whole(Path(path).with_suffix(".sol"), "\n".join(whole))
    write_whole(Path(path).with_suffix(".mst"), "\n".join([*values, ""]))


@checked(SolverError)
def read_solution(path: str | Path, model: LinearModel) -> FloatArray:
    """Read a point of a model that a solver wrote, by the names of its columns.

    Takes what HiGHS, CBC, GLPK (``--output``), SCIP and Gurobi (``.sol``) write, and what
    `write_model` does. Columns that the file does not name are 0. A `SolverError` refuses a file in
    which the solver says that there is no point, one of another make, and a point that is
    infeasible, as it may be by the six digits that GLPK and styles 1 and 3 of HiGHS write.
    `program.read` turns the point into a schedule.

    Examples
    --------
    >>> import tempfile, optsched
    >>> program = optsched.HindsightProgram(optsched.family("uniform", n=4, seed=1))
    >>> model, plan = program.to_linear(), optsched.run(program.instance, "area").schedule
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_model(model, f"{folder}/program.mps", start=program.write_point(plan))
    ...     program.read(read_solution(f"{folder}/program.sol", model)).starts == plan.starts
    array([ True,  True,  True,  True])
    """
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SolverError(f"{path}: the solution cannot be read: {error}") from None
    place = {name: at for form in ("[]", "()") for at, name in enumerate(model.column_names(form))}
    point, known = np.zeros(len(model.cost)), set[str]()
    status, entries = _written(path, [line for line in lines if line.strip()])
    if any(word in status.casefold() for word in NO_POINT_IN_FILES):
        raise SolverError(f"{path} holds no point: its status is {status!r}")
    for name, value in entries:
        if name not in place:  # such as what Gurobi adds for rows with two bounds
            continue
        if name in known:
            raise SolverError(f"{path} names {name} twice; have its columns alone written")
        known.add(name)
        try:
            if not math.isfinite(number := float(value)):  # a ray of an unbounded model
                raise ValueError
            point[place[name]] = number
        except ValueError:
            raise SolverError(f"{path}: {name} is {value!r}, but must be a finite number") from None
    if not known and not status:  # some write nothing of columns that are 0
        raise SolverError(
            f"{path} names no column of {model.name}, such as {next(iter(place), 'none')}; solve "
            "the file that write_model wrote, and have the solver write its solution by names"
        )
    kept, breach = base.feasible(model, point)
    if kept is None:
        raise SolverError(f"{path}: its point is infeasible: {breach}")
    return kept + 0.0  # no negative zeros


def _written(path: str | Path, lines: list[str]) -> tuple[str, list[list[str]]]:
    """Return the status and the columns with their values, by the sections of who wrote them."""
    words = [line.split() for line in lines]
    first = lines[0].strip() if lines else ""
    try:
        if first == "Model status":  # HiGHS, styles 0 and 4
            at = words.index(["#", "Primal", "solution", "values"]) + 1
            if lines[at] != "Feasible":
                return f"{lines[1]} ({_UNSAID})", []
            begin = next(at for at, line in enumerate(lines) if line.startswith("# Columns")) + 1
            return lines[1], _pairs(path, words[begin:][: abs(int(words[begin - 1][2]))])
        if first == "Columns":  # HiGHS, style 1; blank where there are no values
            status = next(line for line in lines if line.startswith("Model status:"))
            table = words[2 : lines.index("Rows")]
            values = [[word for word in row[1:-1] if _is_number(word)][2:] for row in table]
            if not all(values):
                return f"{status} ({_UNSAID})", []
            pairs = zip(table, values, strict=True)
            return status, [[row[-1], value[0]] for row, value in pairs]
        if first.startswith("Problem:"):  # GLPK, and HiGHS, style 3
            status = next(line for line in lines if line.startswith("Status:"))
            begin = next((at for at, line in enumerate(lines) if "Column name" in line), len(lines))
            table = list(takewhile(lambda row: row[0] not in _CHECKS, words[begin + 2 :]))
            rows: list[list[str]] = []
            for row in table:
                if rows and len(rows[-1]) == 2:  # what follows a long name is a line below
                    rows[-1] += row
                else:
                    rows.append(row)
            return status, [[row[1], next(filter(_is_number, row[2:]))] for row in rows]
        if " - objective value" in first:  # CBC, which may list rows before columns
            rows = [row[row[0] == "**" :] for row in words[1:]]
            ranks = [int(row[0]) for row in rows]
            begin = max((at for at in range(1, len(rows)) if ranks[at] <= ranks[at - 1]), default=0)
            return first, [row[1:3] for row in rows[begin:]]
        if first.startswith(("solution status:", "objective value:", "no solution")):  # SCIP
            if any(line.startswith("no solution") for line in lines[:2]):
                return f"{first} ({_UNSAID})", []
            named = [row for row in words if row[:1] != ["solution"] and row[1:2] != ["value:"]]
            return first, _pairs(path, [row[:2] for row in named])
    except (ValueError, IndexError, StopIteration):
        raise SolverError(f"{path} is cut off, or none that a solver wrote") from None
    for begins, make in _UNREAD.items():
        if begins in first:
            raise SolverError(f"{path} is {make}, which is not read; {_ADVICE}")
    return "", _pairs(path, [row for row in words if not row[0].startswith("#")])  # Gurobi, starts


def _pairs(path: str | Path, rows: list[list[str]]) -> list[list[str]]:
    """Return names and values, of which sparse files have the place behind them."""
    for row in rows:
        if len(row) not in (2, 3):
            raise SolverError(f"{path} holds {' '.join(row)!r} in place of a name and a value")
    return [row[:2] for row in rows]


def _is_number(word: str) -> bool:
    with suppress(ValueError):
        float(word)
        return True
    return False


@checked(SolverError)
def read_model(path: str | Path) -> LinearModel:
    """Read a model from an MPS or LP file of any origin.

    A file of `write_model` is restored except for names of indices. Where the names in the file
    are not those of families, columns and rows are numbered instead. A file that HiGHS cannot read
    raises a `SolverError`.
    """
    ending = ending_of(path)
    if not Path(path).is_file():
        raise SolverError(f"{path}: there is no such file")
    highspy = highs.load()
    native = highspy.Highs()
    native.setOptionValue("output_flag", False)
    native.setOptionValue("small_matrix_value", _SMALLEST)
    native.setOptionValue("large_matrix_value", math.inf)
    native.setOptionValue("infinite_cost", math.inf)
    with _without_blank_lines(Path(path)) if ending == ".mps" else nullcontext(path) as whole:
        status = native.readModel(str(whole))
    if status == highspy.HighsStatus.kError:
        raise SolverError(f"{path}: HiGHS cannot read the file; look for a mistake in its format")
    lp = native.getLp()
    matrix = lp.a_matrix_
    parts = np.array(matrix.value_), np.array(matrix.index_), np.array(matrix.start_)
    by_row = matrix.format_ == highspy.MatrixFormat.kRowwise
    kind = scipy.sparse.csr_array if by_row else scipy.sparse.csc_array
    try:
        rows, columns = list(lp.row_names_), list(lp.col_names_)
    except UnicodeDecodeError as error:
        raise SolverError(f"{path}: a name is not UTF-8 text ({error.reason})") from None
    for what, names, count in (("rows", rows, lp.num_row_), ("columns", columns, lp.num_col_)):
        if len(names) < count:  # HiGHS drops all names where one is there twice
            raise SolverError(f"{path}: two {what} have the same name; rename one of them")
    if status == highspy.HighsStatus.kWarning:
        raise SolverError(
            f"{path}: HiGHS would not read all of the file, perhaps for coefficients of "
            f"{_SMALLEST:g} or less; multiply their rows or leave them out"
        )
    integer = np.array([int(kind) for kind in lp.integrality_] or [0] * len(columns), dtype=int)
    if len(other := np.flatnonzero(integer > 1)):
        raise SolverError(
            f"{path}: column {columns[other[0]]} is semi-continuous or semi-integer, which a "
            "LinearModel cannot express; write it with a binary column"
        )
    negated = ending == ".mps" and _is_negated(Path(path))
    sign = -1 if negated else 1
    arrays = LinearArrays(
        cost=sign * np.array(lp.col_cost_) + 0.0,
        matrix=scipy.sparse.csr_array(kind(parts, shape=(lp.num_row_, lp.num_col_))),
        row_lower=np.array(lp.row_lower_),
        row_upper=np.array(lp.row_upper_),
        col_lower=lp.col_lower_,
        col_upper=lp.col_upper_,
        integer=integer.astype(bool),
        offset=sign * lp.offset_ + 0.0,
        sense="max" if negated or lp.sense_ == highspy.ObjSense.kMaximize else "min",
        name=Path(path).stem,
    )
    return with_names(*_join_sides(arrays, rows), columns)[0]


def _is_negated(path: Path) -> bool:
    """Tell whether `write_model` has negated the costs; HiGHS takes the name of the file alone."""
    with path.open(encoding="utf-8", errors="replace") as lines:
        named = next((line for line in lines if line.startswith("NAME")), "")
    return named.rstrip().endswith(_NEGATED)


@contextmanager
def _without_blank_lines(path: Path) -> Iterator[Path]:
    """Yield an MPS file that HiGHS reads to its end."""
    # Where lines are blank HiGHS falls back to fixed columns, and may then look for the next line
    # forever; in a file that is cut off it does so, too.
    lines = path.read_bytes().splitlines()
    if not any(line.startswith(b"ENDATA") for line in lines):
        raise SolverError(f"{path}: the file ends without ENDATA, so it seems to be cut off")
    section = b""
    for number, line in enumerate(lines, 1):
        words = line.split()
        if words and not line[:1].isspace():
            section = words[0]
        elif len(words) == 1 and section in _ENTRIES:  # HiGHS reads on as if nothing were wrong
            word = words[0].decode(errors="replace")
            raise SolverError(
                f"{path}: line {number} holds nothing but {word!r}; an entry has two words or more"
            )
    if all(line.strip() for line in lines):
        yield path
        return
    with TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        copy.write_bytes(b"\n".join([line for line in lines if line.strip()] + [b""]))
        yield copy


def with_names(
    arrays: LinearArrays, rows: Sequence[str], columns: Sequence[str]
) -> tuple[LinearModel, IntArray]:
    """Make a model of arrays that came with names, members of a family put side by side."""
    column_order, variables = _families(columns)
    row_order, row_families = _families(rows)
    ordered = {
        name: np.asarray(getattr(arrays, name))[order]
        for order, names in (
            (column_order, ("cost", "col_lower", "col_upper", "integer")),
            (row_order, ("row_lower", "row_upper")),
        )
        for name in names
    }
    model = LinearModel(
        matrix=arrays.matrix[row_order][:, column_order],
        **ordered,
        offset=arrays.offset,
        sense=arrays.sense,
        variables=variables,
        rows=row_families,
        name=arrays.name,
    )
    return model, column_order


def _families(names: Sequence[str]) -> tuple[IntArray, tuple[Family, ...]]:
    """Order names by family, and within one as they come."""
    stems = [re.split(r"[\[(]", name, maxsplit=1)[0] for name in names]
    ranks = {stem: rank for rank, stem in enumerate(dict.fromkeys(stems))}
    order = np.argsort([ranks[stem] for stem in stems], kind="stable").astype(np.int64)
    try:
        families = Family.parse([names[at] for at in order.tolist()])
    except (ModelError, ValueError):  # the latter where an index has thousands of digits
        families = ()
    if len({family.name for family in families}) < len(families):  # with and without indices
        families = ()
    return (order, families) if families else (np.arange(len(names)), ())


def _join_sides(arrays: LinearArrays, names: list[str]) -> tuple[LinearArrays, list[str]]:
    """Join the two rows that an LP file has for a row with two bounds."""
    matrix, upper = arrays.matrix, arrays.row_upper.copy()
    joined, keep = list(names), np.ones(len(names), dtype=bool)
    for at, (name, following) in enumerate(pairwise(names)):
        stem = name.removesuffix(_SIDES[0])
        if following != stem + _SIDES[1] or stem == name:
            continue
        if abs(matrix[[at]] - matrix[[at + 1]]).sum() == 0:
            joined[at], upper[at], keep[at + 1] = stem, upper[at + 1], False
    lower = arrays.row_lower[keep]
    arrays = replace(arrays, matrix=matrix[keep], row_lower=lower, row_upper=upper[keep], rows=())
    return arrays, list(compress(joined, keep))


def ending_of(path: str | Path) -> str:
    """Return the ending of a model's file, or refuse another one."""
    ending = Path(path).suffix.lower()
    if ending in (".gz", ".bz2", ".xz", ".zst", ".zip"):
        raise SolverError(f"{path}: a model's file is not packed; unpack it first")
    if ending not in (".mps", ".lp"):
        raise SolverError(f"{path}: the file must end in .mps or .lp")
    return ending


def _number(value: float) -> str:
    """Write a number so that reading it gives the same one."""
    if value == int(value) and abs(value) < 2**53:
        return str(int(value))
    return repr(float(value))


def _numbers(values: FloatArray) -> list[str]:
    if (values == np.rint(values)).all() and np.abs(values).max(initial=0) < 2**53:
        return list(map(str, values.astype(np.int64).tolist()))
    return list(map(_number, values.tolist()))


def _mps_lines(model: LinearModel) -> Iterable[str]:
    columns, rows, sign = model.column_names(), model.row_names(), _sign(model)
    yield f"NAME {'_'.join(model.name.split())}{_NEGATED * (model.sense == 'max')}"
    cost = _objective(rows)
    yield f"ROWS\n N {cost}"
    lower, upper = model.row_lower, model.row_upper
    ranged = np.isfinite(lower) & np.isfinite(upper) & (lower < upper)
    kinds = np.where(np.isfinite(lower) & ~np.isfinite(upper), "G", "L")
    kinds[lower == upper] = "E"
    kinds[ranged & (np.abs(lower) < np.abs(upper))] = "G"
    for kind, name in zip(kinds.tolist(), rows, strict=True):
        yield f" {kind} {name}"
    yield "COLUMNS"
    yield from _mps_columns(model, columns, rows)
    yield "RHS"
    if model.offset:
        yield f" RHS {cost} {_number(-sign * model.offset)}"
    sides = np.where(kinds == "G", lower, np.where(np.isfinite(upper), upper, _ENDLESS))
    for at in np.flatnonzero(sides).tolist():
        yield f" RHS {rows[at]} {_number(sides[at])}"
    yield "RANGES"
    for at in np.flatnonzero(ranged).tolist():
        width = _width(float(lower[at]), float(upper[at]), from_lower=kinds[at] == "G")
        yield f" RANGE {rows[at]} {_number(width)}"
    yield "BOUNDS"
    for name, low, high in _bounds(model, columns):
        yield f" MI BOUND {name}" if np.isinf(low) else f" LO BOUND {name} {_number(low)}"
        yield f" PL BOUND {name}" if np.isinf(high) else f" UP BOUND {name} {_number(high)}"
    yield "ENDATA"


def _objective(rows: list[str]) -> str:
    """Name the row of the costs, which shares the names of all rows."""
    name = "objective"
    while name in rows:
        name += "_"
    return name


def _sign(model: LinearModel) -> int:
    """Return what MPS files multiply costs by: not all solvers read a sense in them."""
    return 1 if model.sense == "min" else -1


def _bounds(model: LinearModel, columns: list[str]) -> Iterable[tuple[str, float, float]]:
    return zip(columns, model.col_lower.tolist(), model.col_upper.tolist(), strict=True)


def _width(lower: float, upper: float, *, from_lower: bool) -> float:
    """Return the number that leads a reader from the smaller bound to exactly the other one."""
    width = upper - lower
    for candidate in (width, math.nextafter(width, 0), math.nextafter(width, math.inf)):
        if (lower + candidate == upper) if from_lower else (upper - candidate == lower):
            return candidate
    return width


def _mps_columns(model: LinearModel, columns: list[str], rows: list[str]) -> Iterable[str]:
    by_column = model.matrix.tocsc()
    values, begins = _numbers(by_column.data), by_column.indptr.tolist()
    members = [rows[at] for at in by_column.indices.tolist()]
    marked, objective = False, _objective(rows)
    for at, (name, integer, cost) in enumerate(
        zip(columns, model.integer.tolist(), _numbers(_sign(model) * model.cost), strict=True)
    ):
        if integer != marked:
            yield f" MARKER 'MARKER' '{'INTORG' if integer else 'INTEND'}'"
            marked = integer
        if cost != "0" or begins[at] == begins[at + 1]:
            yield f" {name} {objective} {cost}"
        for entry in range(begins[at], begins[at + 1]):
            yield f" {name} {members[entry]} {values[entry]}"
    if marked:
        yield " MARKER 'MARKER' 'INTEND'"


def _lp_lines(model: LinearModel) -> Iterable[str]:
    for family in (*model.variables, *model.rows):
        if _RESERVED.fullmatch(family.name):
            raise SolverError(
                f"the family {family.name!r} has a name that LP files reserve; rename it or write "
                "an .mps file"
            )
    columns, rows = model.column_names("()"), model.row_names("()")
    if not columns:
        raise SolverError("an LP file needs a column; write an .mps file")
    yield "minimize" if model.sense == "min" else "maximize"
    # All columns stand in the objective, so that a reader meets them in their order.
    constant = f" {model.offset:+}" if model.offset else ""
    yield f" {_objective(rows)}: {_lp_sum(_numbers(model.cost), columns)}{constant}"
    yield "subject to"
    matrix = model.matrix
    values, begins = _numbers(matrix.data), matrix.indptr.tolist()
    names = [columns[at] for at in matrix.indices.tolist()]
    for row, begin, end, low, high in zip(
        rows, begins, begins[1:], model.row_lower.tolist(), model.row_upper.tolist(), strict=False
    ):
        total = _lp_sum(values[begin:end], names[begin:end]) or f"0 {columns[0]}"
        if low == high:
            yield f" {row}: {total} = {_number(low)}"
        elif np.isfinite(low) and np.isfinite(high):
            yield f" {row}{_SIDES[0]}: {total} >= {_number(low)}"
            yield f" {row}{_SIDES[1]}: {total} <= {_number(high)}"
        elif np.isfinite(high):
            yield f" {row}: {total} <= {_number(high)}"
        else:
            yield f" {row}: {total} >= {_number(low) if np.isfinite(low) else '-inf'}"
    yield "bounds"
    for name, low, high in _bounds(model, columns):
        least = "-inf" if np.isinf(low) else _number(low)
        most = "+inf" if np.isinf(high) else _number(high)
        yield f" {name} free" if least + most == "-inf+inf" else f" {least} <= {name} <= {most}"
    if model.integer.any():
        yield "general"
        whole = [columns[at] for at in np.flatnonzero(model.integer).tolist()]
        for begin in range(0, len(whole), 8):
            yield " " + " ".join(whole[begin : begin + 8])
    yield "end"


def _lp_sum(values: list[str], names: list[str]) -> str:
    """Write a sum, broken into lines that every reader takes."""
    terms = [
        f"- {value[1:]} {name}" if value[0] == "-" else f"+ {value} {name}"
        for value, name in zip(values, names, strict=True)
    ]
    lines = [" ".join(terms[begin : begin + 8]) for begin in range(0, len(terms), 8)]
    return "\n  ".join(lines).removeprefix("+ ")
