"""A Python of its own, which has imported nothing yet, or numba alone."""

import os
import subprocess
import sys
import tempfile
from multiprocessing import forkserver, get_context
from pathlib import Path
from unittest import mock

_forks = get_context("forkserver")
_forks.set_forkserver_preload(["warm_numba"])


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


def forked(code, folder, environment):
    """Run code where numba is there already, but nothing of ours: output, and error output."""
    # Before Python 3.14 a server is not told where its parent looks for modules.
    with mock.patch.dict(os.environ, PYTHONPATH=str(Path(__file__).parent)):
        forkserver.ensure_running()
    with tempfile.TemporaryDirectory() as place:
        outputs = [str(Path(place, name)) for name in ("out", "err")]
        process = _forks.Process(target=_run, args=(code, str(folder), dict(environment), outputs))
        process.start()
        process.join()
        out, err = (Path(output).read_text() for output in outputs)
        assert process.exitcode == 0, err
        return out, err


def warm(code):
    """Return what code prints that runs in a new process, where numba is there already."""
    return forked(code, os.getcwd(), os.environ)[0].strip()


def _run(code, folder, environment, outputs):
    for number, output in enumerate(outputs, 1):
        os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), number)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.dont_write_bytecode = True  # it would be stale where a file changes twice in a second
    os.environ.clear()
    os.environ.update(environment)
    sys.modules["numba"].config.reload_config()
    exec(code, {"__name__": "__main__"})
