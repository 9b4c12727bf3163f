"""Commands that list what there is: policies and families."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optsched.cli.common import DONE, Output, shared_options
from optsched.cli.presentation import command, examples

if TYPE_CHECKING:
    from collections.abc import Mapping


def _listed(output: Output, known: Mapping[str, Any]) -> int:
    width = max(map(len, known))
    for name, each in known.items():
        source = f" ({each.source})" if each.source else ""
        output.say(f"{name:{width}}  {each.description}{source}")
    output.result(
        [
            {"name": name, "description": each.description, "source": each.source}
            for name, each in known.items()
        ]
    )
    return DONE


@command(epilog=examples("policies", "policies --json -"))
@shared_options
def policies(output: Output, seed: int) -> int:
    """List all policies, with their sources."""
    from optsched.policies import POLICIES

    return _listed(output, POLICIES)


@command(epilog=examples("families", "families --json -"))
@shared_options
def families(output: Output, seed: int) -> int:
    """List all families of workloads, with their sources."""
    from optsched.workloads import FAMILIES

    return _listed(output, FAMILIES)
