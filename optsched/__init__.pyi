import optsched_serving.capacity.capacity as _capacity
import optsched_serving.capacity.slo as _slo

from ._version import __version__ as __version__
from .bounds.ascent import Bound as Bound
from .bounds.bound import bound as bound
from .certificates.prices import Certificate as Certificate
from .certificates.prices import read_certificate as read_certificate
from .certificates.prices import verify as verify
from .clock import get_clock as get_clock
from .errors import InfeasibleError as InfeasibleError
from .errors import OptschedError as OptschedError
from .experiments.comparison import compare as compare
from .experiments.records import library as library
from .experiments.regret import regret as regret
from .experiments.side_by_side import Comparison as Comparison
from .experiments.sweep import read_sweep as read_sweep
from .experiments.sweep import sweep as sweep
from .models.hindsight import HindsightProgram as HindsightProgram
from .models.linear import LinearModel as LinearModel
from .models.program import Solution as Solution
from .optimum.gap import explain_gap as explain_gap
from .optimum.programs import explain_infeasibility as explain_infeasibility
from .optimum.routing import routing_loss as routing_loss
from .optimum.solving import solve as solve
from .optimum.state import Optimum as Optimum
from .optimum.state import SolveParams as SolveParams
from .policies import POLICIES as POLICIES
from .policies import DecisionPolicy as DecisionPolicy
from .policies import PriorityPolicy as PriorityPolicy
from .policies import RollingPolicy as RollingPolicy
from .problem.execution import Execution as Execution
from .problem.forecasts import Beliefs as Beliefs
from .problem.forecasts import Forecast as Forecast
from .problem.forecasts import forecast as forecast
from .problem.instance import Instance as Instance
from .problem.request_types import RequestTypes as RequestTypes
from .problem.schedule import Schedule as Schedule
from .problem.workers import Cluster as Cluster
from .problem.workers import Router as Router
from .problem.workers import Workers as Workers
from .simulate import RunSettings as RunSettings
from .simulate import run as run
from .solvers.backends.files import read_model as read_model
from .solvers.backends.files import write_model as write_model
from .workloads import family as family
from .workloads import read_trace as read_trace

capacity = _capacity.capacity
Slo = _slo.Slo
