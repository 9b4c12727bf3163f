"""The command that checks the installation."""

from __future__ import annotations

from optsched.cli.common import DONE, NO, Output, shared_options
from optsched.cli.presentation import command, examples


@command(
    epilog=examples(
        "doctor --quiet --json -",
    )
)
@shared_options
def doctor(output: Output, seed: int) -> int:
    """Check versions, solvers and speeds of this machine."""
    from optsched.cli.diagnosis import doctor as findings
    from optsched.cli.diagnosis import to_dict

    found = []
    with output.progress("looking"):
        for finding in findings():
            found.append(finding)
            mark = "ok  " if finding.ok else "FAIL"
            output.say(f"{mark}  {finding.name:22} {finding.detail}")
    output.result(to_dict(found))
    return DONE if all(finding.ok for finding in found) else NO
