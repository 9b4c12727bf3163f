"""Sweeps: instances x policies x seeds, on all cores or a cluster, into a folder of Parquet."""

from optsched.experiments.sweeps.driver import Sweep, sweep
from optsched.experiments.sweeps.folder import read_sweep

__all__ = ["Sweep", "read_sweep", "sweep"]
