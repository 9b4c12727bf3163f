"""Models: one file per decision problem. None of them imports a solver."""

from optsched.models.batch import BatchSelection as BatchSelection
from optsched.models.events import EventProgram as EventProgram
from optsched.models.hindsight import HindsightProgram as HindsightProgram
from optsched.models.hindsight import LatencyRelaxation as LatencyRelaxation
from optsched.models.hindsight import Running as Running
from optsched.models.hindsight import latest_starts as latest_starts
from optsched.models.hindsight import safe_horizon as safe_horizon
from optsched.models.linear import Breach as Breach
from optsched.models.linear import Family as Family
from optsched.models.linear import LinearModel as LinearModel
from optsched.models.linear import ModelError as ModelError
from optsched.models.linear import Rows as Rows
from optsched.models.linear import Variables as Variables
