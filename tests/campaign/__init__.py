"""The robustness campaign: random abuse of everything, and a table of what came of it."""

import os
import sys
from pathlib import Path

# The optsched that is tried is the one beside the tests, in new processes too.
_ROOT = str(Path(__file__).resolve().parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, os.getenv("PYTHONPATH")]))
