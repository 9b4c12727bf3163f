"""Machine code on disk is not used when what it calls has changed."""

from __future__ import annotations

import subprocess
import sys

CALLED = (
    "from optsched._compiled import compiled\n\n\n@compiled\ndef inner(x):\n    return x + {}\n"
)
CALLER = (
    "from optsched._compiled import compiled\nfrom {} import inner\n\n\n"
    "@compiled\ndef outer(x):\n    return inner(x)\n"
)


def test_a_change_of_a_called_kernel_in_another_file_is_seen(tmp_path):
    """With numba's own stamp the third run still answered 2."""
    (tmp_path / "calling.py").write_text(CALLER.format("called"))
    # A kernel two files away counts as well.
    (tmp_path / "further.py").write_text(
        CALLER.format("calling").replace("outer", "furthest").replace("inner", "outer")
    )

    def answers():
        command = "from calling import outer; from further import furthest; "
        command += "print(outer(1), furthest(1))"
        run = subprocess.run(
            [sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True
        )
        return run.stdout.split()

    (tmp_path / "called.py").write_text(CALLED.format(1))
    assert answers() == answers() == ["2", "2"]
    (tmp_path / "called.py").write_text(CALLED.format(2))
    assert answers() == ["3", "3"]
