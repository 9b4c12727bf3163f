"""Simulators: they run a policy on an instance; compiled, and checked by literal ones in tests."""

from optsched.simulate.dispatch import run
from optsched.simulate.seconds.execution import ClockedRun
from optsched.simulate.settings import RunSettings

__all__ = ["ClockedRun", "RunSettings", "run"]
