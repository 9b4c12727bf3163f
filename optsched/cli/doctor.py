"""The command that checks the installation."""

from __future__ import annotations

import click

from optsched.cli.common import DONE, NO, Output, shared_options


@click.command()
@shared_options
def doctor(output: Output, seed: int) -> int:
    """Check versions, solvers and speeds; exit code 1 if something does not work."""
    from optsched.doctor import doctor as findings
    from optsched.doctor import to_dict

    found = []
    with output.progress("looking"):
        for finding in findings():
            found.append(finding)
            mark = "ok  " if finding.ok else "FAIL"
            output.say(f"{mark}  {finding.name:22} {finding.detail}")
    output.result(to_dict(found))
    return DONE if all(finding.ok for finding in found) else NO
