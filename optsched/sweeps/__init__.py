"""Sweeps: instances x policies x seeds, on all cores or a cluster, into a folder of Parquet."""

from optsched.sweeps.driver import Sweep, SweepProgress, sweep
from optsched.sweeps.folder import read_sweep

__all__ = ["Sweep", "SweepProgress", "read_sweep", "sweep"]
