import optsched_serving.engines.policy as _vllm

from .base import RULES as RULES
from .base import BatchPolicy as BatchPolicy
from .base import Needs as Needs
from .base import Policy as Policy
from .base import PriorityPolicy as PriorityPolicy
from .base import Rule as Rule
from .base import with_rule as with_rule
from .decision import Decision as Decision
from .decision import DecisionPolicy as DecisionPolicy
from .decision import DynamicPolicy as DynamicPolicy
from .decision import RollingPolicy as RollingPolicy
from .decision import State as State
from .priorities import EnginePolicy as EnginePolicy
from .registry import BASIC as BASIC
from .registry import POLICIES as POLICIES
from .registry import get_policies as get_policies
from .registry import get_policy as get_policy
from .registry import is_shipped as is_shipped
from .registry import split_names as split_names
from .robust import ChancePolicy as ChancePolicy
from .robust import IntervalPolicy as IntervalPolicy
from .robust import OverflowPolicy as OverflowPolicy
from .wait import NestedWaitPolicy as NestedWaitPolicy
from .wait import WaitPolicy as WaitPolicy

VllmPolicy = _vllm.VllmPolicy
