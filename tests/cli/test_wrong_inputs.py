"""Wrong inputs to all commands: exit code 2, one sentence that says where, and nothing lost."""

import gzip
import io
import os
import shlex
import sys
from pathlib import Path

import pytest
from tabled import tabled, tables

from optsched.cli import main

TRACE = "prompt_tokens,output_tokens\n12,5\n20,6\n"
FILES = tables(__file__)["files"] | {
    "latin.csv": b"prompt_tokens,output_tokens,label\n1,2,\xff\n",
    "wide.csv": TRACE.encode("utf-16"),
    "cut.csv.gz": gzip.compress(50 * TRACE.encode())[:-9],
    **{"t.csv": TRACE, "plain.csv.gz": TRACE},
}


@pytest.fixture
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content.encode() if isinstance(content, str) else content)
    Path("folder").mkdir()
    Path("link.csv").symlink_to("t.csv")
    Path("here").symlink_to(".")
    Path("loop.csv").symlink_to("loop.csv")
    os.link("t.csv", "hard.csv")


def everything():
    """Return what there is, with what it holds or leads to."""
    return {
        path.name: os.readlink(path) if path.is_symlink() else path.is_file() and path.read_bytes()
        for path in Path().iterdir()
    }


@pytest.mark.serving("capacity *")
@pytest.mark.usefixtures("_files")
@tabled()
def test_a_wrong_input_is_one_sentence_and_costs_nothing(optsched_command, line, said):
    before = everything()
    code, _, err = optsched_command(*shlex.split(line))
    assert (code, err.count("\n")) == (2, 1), err
    assert err.startswith("optsched: ")
    assert said in err
    assert everything() == before


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout"])
def test_devices_are_no_files_that_are_replaced(optsched_command, device):
    line = f"bound t.csv --memory 99 --json {device} --certificate {device}"
    assert optsched_command(*shlex.split(line))[0] == 0


@pytest.mark.usefixtures("_files")
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii", "koi8-r"])
def test_a_terminal_that_lacks_a_character_gets_the_table(monkeypatch, encoding):

    Path("t.csv").write_text("prompt_tokens,output_tokens,label\n12,5,€你\n20,6,b\n")
    for line in ("compare t.csv --memory 99 --policies area,mc-sf", "select t.csv --memory 99"):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding))
        monkeypatch.setattr(sys, "argv", ["optsched", *shlex.split(line)])
        with pytest.raises(SystemExit) as stop:
            main()
        sys.stdout.flush()
        said = raw.getvalue().decode("utf-8" if encoding == "ascii" else encoding)
        assert (stop.value.code, "proven bound" in said or "F = 2.75" in said) == (0, True)
