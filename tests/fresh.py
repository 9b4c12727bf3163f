"""A Python of its own, which has imported nothing yet."""

import subprocess
import sys


def printed(code, **options):
    """Return what code prints that runs in a new process."""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, **options
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def imports(code, *modules):
    """Return which of these modules are there after code."""
    shown = printed(f"{code}\nimport sys\nprint(*({set(modules)!r} & set(sys.modules)))")
    return set(shown.split())
