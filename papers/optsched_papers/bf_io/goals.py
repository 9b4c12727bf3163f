r"""Deadlines, tenants and energy in the step program (BF-IO Section 7.3), on the hooks of optsched.

`GoalProgram` adds rows and a column to `BalanceProgram`, and `GoalRouting` is a rule of one's own.

**Energy.** At a step the workers draw
:math:`E = (C + t_\ell z) \sum_g (P_0 + \Delta P (L_g / z)^\gamma)` joules with
:math:`z = \max_g L_g`, idle power :math:`P_0` and :math:`\Delta P` from idle to peak. As
:math:`L^\gamma z^{1 - \gamma} \le \gamma L + (1 - \gamma) z` and :math:`z` is at least the load
:math:`z_0` of the fullest worker before admission,

.. math:: E \le G C (P_0 + (1 - \gamma) \Delta P) + G t_\ell (P_0 + (1 - \gamma) \Delta P) \, z
    + \gamma \Delta P (t_\ell + C / z_0) \sum_g L_g.

With :math:`a` and :math:`b` for the last two coefficients and a price of :math:`p` tokens of
imbalance per joule, imbalance and energy together are

.. math:: \Bigl(1 + \frac{p a}{G}\Bigr) \Bigl( G z - \sum_g L_g + \kappa \sum_g L_g \Bigr), \qquad
    \kappa = \frac{p (a / G + b)}{1 + p a / G}.

So a price adds :math:`\kappa` per token admitted: a bonus for small requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import sparse

from optsched import solve
from optsched._internal.arrays import prefix_sums
from optsched.errors import InstanceError, PolicyError
from optsched.models import BalanceProgram, BalanceState, Family
from optsched.models.balance import WAITING, whole_row
from optsched.models.linear import read_only
from optsched.simulate.cluster.results import longest_outputs

if TYPE_CHECKING:
    import numpy.typing as npt

    from optsched import Instance, LinearModel
    from optsched._internal.arrays import FloatArray, IntArray
    from optsched.simulate.cluster import Cluster, ClusterState

_LARGEST = 2**31


@dataclass(frozen=True, eq=False, repr=False)
class StepGoals:
    r"""Deadlines and tenants of the requests that wait at a step (BF-IO Section 7.3).

    **Deadlines.** Let :math:`D_j` be the requests whose latest start is one of the steps
    :math:`k, \dots, k + j`, :math:`F_j` the slots that become free at steps
    :math:`k + 1, \dots, k + j`, and :math:`U` the admissions of this step. However it is decided,
    at least :math:`m = \max_j \, (|D_j| - U - F_j)^+` latest starts pass, and the rows

    .. math:: \sum_{i \in D_j} \sum_g x_{ig} \ge |D_j| - F_j - m \quad \forall j

    hold exactly where no more than :math:`m` need to pass: the sets :math:`D_j` are nested, so that
    this is Hall's condition. Admitting by latest start satisfies them, so that they exclude no step
    where memory is not limited. A request whose latest start has passed is no longer in any row.

    **Tenants.** A tenant that is :math:`q_t` slots short of its share may be served now; the
    objective has the largest shortfall that remains, at a price :math:`\beta` per slot:
    :math:`\beta \, \max ( 0, \max_t \, ( q_t - \sum_{i \in t} \sum_g x_{ig} ) )`.

    Parameters
    ----------
    latest
        Steps from now to the latest start of each waiting request, negative where that has passed,
        shape (R,); None for no deadlines.
    freed
        Slots that become free at each of the next steps, shape (H,); None where that is unknown,
        and then only latest starts of this step count.
    tenant
        Number of the tenant of each waiting request, shape (R,); None for no tenants.
    short
        Slots :math:`q_t` by which each tenant is short of its share before this step, as far as it
        has requests waiting; shape (T,).
    price
        :math:`\beta`, in tokens of imbalance.
    """

    latest: IntArray | None
    freed: IntArray | None
    tenant: IntArray | None
    short: IntArray | None
    price: int

    def __init__(
        self,
        latest: npt.ArrayLike | None = None,
        freed: npt.ArrayLike | None = None,
        tenant: npt.ArrayLike | None = None,
        short: npt.ArrayLike | None = None,
        price: int = 1,
    ) -> None:
        if (tenant is None) != (short is None):
            raise InstanceError("tenant and short belong together; pass both or neither")
        given = {"latest": latest, "freed": freed, "tenant": tenant, "short": short}
        for name, values in given.items():
            row = None if values is None else read_only(whole_row(name, values, None))
            object.__setattr__(self, name, row)
        object.__setattr__(self, "price", int(whole_row("price", price, 1)[0]))
        self._check()

    def _check(self) -> None:
        if not 0 <= self.price < _LARGEST:
            raise InstanceError(f"price is {self.price}, but must be from 0 to {_LARGEST - 1}")
        if self.freed is not None and (self.freed < 0).any():
            step = int(np.argmax(self.freed < 0))
            raise InstanceError(f"freed[{step}] is {self.freed[step]}, but must be at least 0")
        if self.tenant is None or self.short is None:
            return
        bad = (self.tenant < 0) | (self.tenant >= len(self.short))
        if bad.any():
            request = int(np.argmax(bad))
            raise InstanceError(
                f"request {request}: tenant is {self.tenant[request]}, but must be from 0 to "
                f"{len(self.short) - 1}"
            )
        if int(self.short.max(initial=0)) * self.price >= 2**53:
            raise InstanceError("price times shortfall is too much for exact arithmetic")

    def check(self, requests: int, lookahead: int) -> None:
        """Refuse goals of another step."""
        for name in ("latest", "tenant"):
            row = getattr(self, name)
            if row is not None and len(row) != requests:
                raise InstanceError(
                    f"{name} has {len(row)} entries, but {requests} requests are waiting"
                )
        if self.freed is not None and len(self.freed) < lookahead:
            raise InstanceError(
                f"freed has {len(self.freed)} entries, but the lookahead is {lookahead} steps"
            )

    def required(self, admitted: int, lookahead: int) -> IntArray:
        """Return how many requests due within each further step are to be admitted now."""
        if self.latest is None:
            return np.zeros(0, dtype=np.int64)
        freed = np.zeros(1, dtype=np.int64)
        if self.freed is not None:
            freed = prefix_sums(self.freed[:lookahead])
        ahead = np.arange(len(freed))
        due = ((self.latest >= 0) & (self.latest <= ahead[:, None])).sum(axis=1)
        passing = max(0, int((due - freed).max()) - admitted)
        return np.asarray(np.maximum(due - freed - passing, 0), dtype=np.int64)

    def admits(self, chosen: IntArray, lookahead: int) -> bool:
        """Return whether an assignment admits what deadlines require."""
        if self.latest is None:
            return True
        started = chosen != WAITING
        required = self.required(int(started.sum()), lookahead)
        ahead = np.arange(len(required))[:, None]
        due = (self.latest >= 0) & (self.latest <= ahead)
        return bool(((due & started).sum(axis=1) >= required).all())

    def shortfall(self, chosen: IntArray) -> int:
        """Return by how many slots the tenant that is worst off falls short after an assignment."""
        if self.tenant is None or self.short is None:
            return 0
        admitted = self.tenant[chosen != WAITING]
        left = self.short - np.bincount(admitted, minlength=len(self.short))
        return int(left.max(initial=0))

    def added_to(self, program: BalanceProgram) -> LinearModel:
        """Return the program as a model, with the rows of deadlines and tenants."""
        model, lookahead = program.to_linear(), program.state.lookahead
        assign = model.variables[0]
        if self.latest is not None:
            required = self.required(program.admissions, lookahead)
            steps = np.flatnonzero(required)
            due = (self.latest >= 0) & (self.latest <= steps[:, None])
            if len(steps):
                family = Family.of("deadline", step=steps)
                rows = {"assign": _apiece(due, assign)}
                model = model.with_rows(family, rows, lower=required[steps])
        if self.tenant is not None and self.short is not None:
            most, poor = int(self.short.max(initial=0)), np.flatnonzero(self.short > 0)
            model = model.with_columns(
                "shortfall",
                np.zeros((len(model.row_lower), 1)),
                self.price,
                upper=most,
                integer=True,
            )
            if len(poor):
                sums: dict[str, Any] = {
                    "assign": _apiece(self.tenant == poor[:, None], assign),
                    "shortfall": np.ones((len(poor), 1)),
                }
                family = Family.of("share", tenant=poor)
                model = model.with_rows(family, sums, lower=self.short[poor])
        return model


def _apiece(mask: npt.NDArray[np.bool_], assign: Family) -> sparse.csr_array:
    """Write sums over some requests, on whatever worker they run."""
    workers = len(assign) // mask.shape[1] if mask.shape[1] else 0
    return sparse.csr_array(np.tile(mask.astype(np.float64), (1, workers)))


@dataclass(frozen=True, eq=False)
class GoalProgram:
    """A step program with goals: `optsched.solve` takes it by any solver of linear models."""

    program: BalanceProgram
    goals: StepGoals

    def __post_init__(self) -> None:
        self.goals.check(len(self.program.state.waiting), self.program.state.lookahead)

    def to_linear(self) -> LinearModel:
        """Write it as arrays."""
        return self.goals.added_to(self.program)

    @property
    def _own(self) -> int:
        """Number of columns after those of the step program."""
        return 0 if self.goals.short is None else 1

    def read(self, values: npt.ArrayLike, /) -> IntArray:
        """Turn a point into the worker of each waiting request, -1 for none."""
        point = np.asarray(values)
        return self.program.read(point[: len(point) - self._own])

    def write_point(self, worker: npt.ArrayLike, /) -> FloatArray:
        """Turn an assignment into a point."""
        short = [float(self.goals.shortfall(np.asarray(worker)))] * self._own
        return np.concatenate([self.program.write_point(worker), short])

    def cost(self, worker: npt.ArrayLike) -> int:
        """Return imbalance less bonus plus the price of the largest shortfall, exactly."""
        price = self.goals.price * self.goals.shortfall(np.asarray(worker))
        return self.program.cost(worker) + price


class Tenants(NamedTuple):
    """Who sent the requests: names, the number of each request's tenant, and weights."""

    names: tuple[str, ...]
    number: IntArray
    weights: FloatArray


def tenants_of(instance: Instance) -> Tenants | None:
    """Read tenants and their mean weights from labels such as acme/17; None unless all name one."""
    labels = instance.labels
    if labels is None or not all("/" in label for label in labels):
        return None
    owners = [label.partition("/")[0] for label in labels]
    names, number = np.unique(owners, return_inverse=True)
    weights = np.ones(len(instance)) if instance.weights is None else instance.weights
    means = np.bincount(number, weights) / np.bincount(number)
    return Tenants(tuple(names.tolist()), number.astype(np.int64), means)


def require_tenants(instance: Instance) -> Tenants:
    """Return the tenants, or say what is missing."""
    tenants = tenants_of(instance)
    if tenants is None:
        raise InstanceError(
            "tenants are read from labels such as acme/17, but not every request has one; add a "
            "column label",
            column="labels",
        )
    return tenants


def fair_slots(weights: FloatArray, demands: IntArray, slots: int) -> IntArray:
    """Divide slots max-min fair by weight, rounded down, to none more than it can use."""
    left = np.ones(len(weights), dtype=bool)
    shares = np.zeros(len(weights))
    free = float(slots)
    while left.any() and free > 0:
        even = free * weights / weights[left].sum()
        content = left & (demands <= even)
        if not content.any():
            shares[left] = even[left]
            break
        shares[content] = demands[content]
        free -= float(demands[content].sum())
        left &= ~content
    return np.floor(shares + 1e-9).astype(np.int64)


def slot_price(loads: IntArray, sizes: IntArray) -> int:
    """Return the tokens of imbalance that a slot is worth to the tenant worst off."""
    # The largest waiting request, on every worker and at every step of the window.
    return loads.size * int(sizes.max())


def _require_power(cluster: Cluster) -> None:
    """Refuse clusters whose energy has no linear form in the largest load and the sum."""
    power = cluster.power
    if power.utilisation != "load" or power.exponent > 1:
        raise PolicyError(
            "an energy price needs a power law by load with an exponent of at most 1, but the "
            f"cluster has utilisation={power.utilisation!r}, exponent={power.exponent:g}"
        )
    if len(np.unique(cluster.per_worker("slowness"))) > 1:
        raise PolicyError("an energy price needs workers of one slowness")


def energy_bonus(cluster: Cluster, loads: IntArray, tokens: IntArray, price: float) -> IntArray:
    """Return what small requests are worth when a joule costs price tokens of imbalance."""
    # At each step a token of load costs kappa tokens of imbalance (see the module); a request is
    # worth what the costliest one costs more. loads: (G, H + 1); tokens: (R, H + 1).
    power, seconds = cluster.power, cluster.seconds_per_token
    spread = power.peak_watt - power.idle_watt
    slowness = int(cluster.per_worker("slowness")[0])
    peak = loads.max(axis=0) * slowness
    of_peak = seconds * (power.idle_watt + (1 - power.exponent) * spread)
    # Where nothing runs, the share of the load is 1 at most, and has no part in the sum.
    overhead = np.divide(cluster.overhead_s, peak, out=np.zeros(len(peak)), where=peak > 0)
    of_sum = power.exponent * spread * (seconds + overhead)
    kappa = price * (of_peak + of_sum) / (1 + price * of_peak)
    costs = slowness * tokens @ kappa
    return np.asarray(np.rint(costs.max(initial=0) - costs), dtype=np.int64)


@dataclass(eq=False)
class GoalRouting:
    """BF-IO with goals, for one run of an instance whose requests arrive in steps.

    Parameters
    ----------
    instance, cluster
        What is run.
    lookahead
        Further steps to look at.
    deadlines
        Let no more latest starts pass than must.
    tenants
        Share slots max-min fair by weight; a tenant is the part of a label before the first slash.
    energy_price
        Tokens of imbalance that a joule is worth.
    method
        The solver.
    """

    instance: Instance
    cluster: Cluster
    lookahead: int = 0
    deadlines: bool = False
    tenants: bool = False
    energy_price: float = 0.0
    method: str = "cp-sat"
    name: str = "bf-io-goals"
    seen: list[tuple[StepGoals, IntArray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.deadlines and self.instance.deadlines is None:
            raise InstanceError("the requests have no deadlines; add a column deadline")
        self._tenants = require_tenants(self.instance) if self.tenants else None
        if self.energy_price:
            _require_power(self.cluster)
        self._outputs = longest_outputs(self.instance)
        self._starts = np.full(len(self.instance), -1)
        self._offered: IntArray = np.zeros(0, dtype=np.int64)

    def route(self, state: ClusterState) -> IntArray:
        """Return a worker for each waiting request, or -1 to let it wait."""
        gone = np.setdiff1d(self._offered, state.waiting)  # it was started when it was offered
        self._starts[gone] = self._offered_at
        self._offered, self._offered_at = state.waiting, state.step
        if not state.free.any():
            return np.full(len(state.waiting), WAITING)
        bonus: Any = 0
        if self.energy_price:
            tokens = state.sizes[:, None] + np.arange(self.lookahead + 1)
            bonus = energy_bonus(self.cluster, state.loads, tokens, self.energy_price)
        slowness = self.cluster.per_worker("slowness")
        step = BalanceState(state.loads, state.free, state.sizes, slowness=slowness, bonus=bonus)
        goals = self._goals(state)
        found = solve(GoalProgram(BalanceProgram(step), goals), method=self.method).require()
        chosen: IntArray = found.answer
        self.seen.append((goals, chosen))
        return chosen

    _offered_at = -1

    def _goals(self, state: ClusterState) -> StepGoals:
        """Return deadlines and shortfalls of the requests that wait."""
        waiting, ends = state.waiting, self._starts + self._outputs
        active = np.flatnonzero((self._starts >= 0) & (ends > state.step))
        latest = freed = tenant = short = None
        if self.deadlines and self.instance.deadlines is not None:
            latest = (self.instance.deadlines - self._outputs)[waiting] - state.step
            left = ends[active] - state.step
            freed = np.bincount(left[left <= self.lookahead], minlength=self.lookahead + 1)[1:]
        if self._tenants is not None:
            number, weights = self._tenants.number, self._tenants.weights
            tenant = number[waiting]
            running = np.bincount(number[active], minlength=len(weights))
            demands = running + np.bincount(tenant, minlength=len(weights))
            slots = len(active) + min(int(state.free.sum()), len(waiting))
            short = fair_slots(weights, demands, slots) - running
        price = slot_price(state.loads, state.sizes)
        return StepGoals(latest, freed, tenant, short, price)
