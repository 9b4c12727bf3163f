"""The models of the card: all names, and modules, of `optsched.models`, which they are.

========================  ============================  ========================  ==========================  ================
model                     paper                         equation                  file in optsched/models/    solvers
========================  ============================  ========================  ==========================  ================
`HindsightProgram`        Sorted-F; Jaillet et al.      OPT-IP, (4)-(7); B.1      hindsight.py                HiGHS, CP-SAT, P
`LatencyRelaxation`       Sorted-F                      Relax-LP, (8)-(11)        hindsight.py                HiGHS, P
`EventProgram`            the same by events            docs/conventions.md       hindsight.py                CP-SAT
`BatchSelection`          Sorted-F                      Alg. 1, line 4            batch.py                    HiGHS, CP-SAT, P, own
`BalanceProgram`          BF-IO                         program (IO)              balance.py                  HiGHS, CP-SAT, P, own
`equilibrium`             Fluid                         (2)-(8)                   fluid/equilibrium.py        own
`WaitThresholds`          Fluid                         WAIT, (9)                 fluid/wait.py               HiGHS, CP-SAT, P
`ThroughputProgram`       Fluid                         (8)                       fluid/wait.py               HiGHS, P
`NestedWaitThresholds`    Fluid                         Nested WAIT, (10), (12)   fluid/nested.py             HiGHS, P
`design_segments`         Fluid                         (12)                      fluid/nested.py             own
========================  ============================  ========================  ==========================  ================

P stands for each solver that Pyomo knows, "own" for methods of this package (docs/models.md).
"""

import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_loader


class _TheSame(MetaPathFinder, Loader):
    """Finds modules of the package under the names that they have here, never a second copy."""

    def find_spec(self, name, path=None, target=None):
        """Find what lies below this name."""
        return spec_from_loader(name, self) if name.startswith(f"{__name__}.") else None

    def exec_module(self, module):
        """Put the module of the package in place of the new one."""
        sys.modules[module.__name__] = import_module(f"optsched.{module.__name__}")


sys.meta_path.insert(0, _TheSame())
sys.modules[__name__] = import_module(f"optsched.{__name__}")
