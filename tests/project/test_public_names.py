"""The public names: listed once in the package, and each documented once on the site."""

import importlib
import re
from pathlib import Path

from installed import SERVING

import optsched
from optsched._internal.rooms import elsewhere

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(ROOT.glob("docs/reference/*.md")) + sorted(ROOT.glob("serving/docs/reference*.md"))


def documented():
    """Return the module and name of what the references document, of what is installed."""
    found = []
    for page in PAGES:
        module = None
        for line in page.read_text(encoding="utf-8").splitlines():
            if matched := re.match(r"\.\. currentmodule:: ([\w.]+)", line):
                module = matched.group(1)
            elif matched := re.match(r"\.\. auto\w+:: (\w+)", line):
                found.append((module, matched.group(1)))
    if SERVING:
        return found
    theirs = ("optsched_serving", "optsched.vllm")
    ours = [each for each in found if not str(each[0]).startswith(theirs)]
    return [(module, name) for module, name in ours if not elsewhere(name)]


def test_every_public_name_is_documented_once():
    names = sorted(name for module, name in documented() if module == "optsched")
    assert names == sorted(set(optsched.__all__) - {"__version__"})
    assert len(names) <= 45  # what only comes as a result is found in its room


def test_names_of_rooms_are_documented_where_they_are():
    rooms = [(module, name) for module, name in documented() if module != "optsched"]
    assert len(rooms) == len(set(rooms)) > 10
    for module, name in rooms:
        assert hasattr(importlib.import_module(module), name)


def test_every_public_name_can_be_loaded_and_says_what_it_is():
    for name in optsched.__all__:
        if name != "__version__":
            assert getattr(optsched, name).__doc__
