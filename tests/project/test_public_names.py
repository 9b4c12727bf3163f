"""The public names: listed once in the package, and each documented once on the site."""

from __future__ import annotations

import re
from pathlib import Path

import optsched

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def test_every_public_name_is_documented_once():
    documented = [
        name
        for page in sorted(REFERENCE.glob("*.md"))
        if page.stem != "policies"
        for name in re.findall(r"^\.\. auto\w+:: (\w+)$", page.read_text(), flags=re.MULTILINE)
    ]
    assert sorted(documented) == sorted(set(optsched.__all__) - {"__version__"})


def test_every_public_name_can_be_loaded_and_says_what_it_is():
    for name in optsched.__all__:
        if name != "__version__":
            assert getattr(optsched, name).__doc__
