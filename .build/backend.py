"""Builds with setuptools; an editable installation shows its types to type checkers, too.

They follow paths, but not the hook by which Python finds the package. A folder of stubs is for them
alone: whatever else lies beside the package stays out of reach.
"""

from pathlib import Path
from zipfile import ZipFile

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_PATH = "optsched-stubs.pth"


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """Build the wheel, add a path to it, and put a link to the package there."""
    name = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    stubs = Path("build/types/optsched-stubs").absolute()
    stubs.parent.mkdir(parents=True, exist_ok=True)
    stubs.unlink(missing_ok=True)
    stubs.symlink_to(Path("optsched").absolute())
    wheel = Path(wheel_directory, name)
    with ZipFile(wheel) as built:
        files = {each: built.read(each) for each in built.namelist()}
    (record,) = (each for each in files if each.endswith(".dist-info/RECORD"))
    files |= {_PATH: f"{stubs.parent}\n".encode(), record: files[record] + f"{_PATH},,\n".encode()}
    with ZipFile(wheel, "w") as extended:
        for each, content in files.items():
            extended.writestr(each, content)
    return name
