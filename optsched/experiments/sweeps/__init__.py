"""Sweeps: instances x policies x seeds, on all cores or a cluster, into a folder of Parquet."""

from optsched.experiments.sweeps.driver import Sweep, SweepProgress, sweep
from optsched.experiments.sweeps.folder import read_sweep

__all__ = ["Sweep", "SweepProgress", "read_sweep", "sweep"]
