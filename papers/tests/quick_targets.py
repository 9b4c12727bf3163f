"""Targets of the papers in quick form; what one test has computed no other computes again."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import optsched_papers as papers

CELLS = "OPTSCHED_TEST_CELLS"  # a folder of this session


@cache
def quick(name):
    """Reproduce a target; its finished cells are shared by all processes of the session."""
    cells = Path(os.environ[CELLS]) / name
    cells.mkdir(exist_ok=True)
    return papers.reproduce(name, quick=True, cells=cells)
