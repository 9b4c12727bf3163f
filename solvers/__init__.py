"""The solvers of the card: all names, and modules, of `optsched.solvers`, which they are.

==============================  ==============================================  ============================
solver                          model                                           file in optsched/solvers/
==============================  ==============================================  ============================
HiGHS                           `LinearModel`                                   backends/highs.py
CP-SAT                          `LinearModel` in whole numbers, `EventProgram`  backends/cpsat.py
each that Pyomo knows           `LinearModel`                                   backends/pyomo.py
any that reads MPS or LP files  `LinearModel`                                   backends/files.py
dynamic programs, swap, ...     `BatchSelection` (after Sorted-F Alg. 2, 4, 5)  selection.py
swap, greedy                    `BalanceProgram` (BF-IO)                        balance.py
==============================  ==============================================  ============================

`optsched.solve` chooses among them, and solves an `Instance` by methods of its own
(docs/how-solve-works.md).
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
