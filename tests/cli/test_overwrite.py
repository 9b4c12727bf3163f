"""Outputs replace what optsched wrote, and nothing else unless they are told to."""

import pytest
from installed import with_serving

FAMILY = "family:uniform,n=4"
MINE = "a log of mine\n"
OUTPUTS = {
    "compare --json": ("compare", FAMILY, "--json"),
    "compare --html": ("compare", FAMILY, "--html"),
    "bound --certificate": ("bound", FAMILY, "--certificate"),
    "bound --json": ("bound", FAMILY, "--json"),
    "solve --certificate": ("solve", FAMILY, "--certificate"),
    "simulate --log": ("simulate", FAMILY, "--policy", "area", "--log"),
    "export --out": ("export", FAMILY, "--model", "hindsight", "--out"),
    **dict(with_serving(("clock --json", ("clock", "--json")))),
    "policies --json": ("policies", "--json"),
}
ENDINGS = {"simulate --log": ".csv", "export --out": ".mps"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_file_of_ones_own_is_kept_unless_told(optsched_command, refused, tmp_path, name):
    words, path = OUTPUTS[name], tmp_path / f"mine{ENDINGS.get(name, '.x')}"
    path.write_text(MINE)
    err = refused(*words, path)
    assert f"{path} is there, and optsched has not written it as it is; name another" in err
    assert path.read_text() == MINE
    code, _, err = optsched_command(*words, path, "--overwrite")
    assert code == 0, err
    written = path.read_bytes()
    assert written != MINE.encode()
    assert optsched_command(*words, path)[0] == 0  # as it is one of ours now
    path.write_bytes(written + b"\n")
    assert optsched_command(*words, path)[0] == 2  # and no more, as somebody has changed it
    path.write_text("")
    assert optsched_command(*words, path)[0] == 0  # as nothing is lost


def test_a_folder_of_schedules_and_a_start_beside_a_model_are_looked_at(
    optsched_command, refused, tmp_path
):
    (tmp_path / "area.json").write_text(MINE)
    words = ("compare", FAMILY, "--policies", "area", "--schedules", tmp_path)
    err = refused(*words)
    assert (tmp_path / "area.json").read_text() == MINE
    assert "area.json is there, and optsched has not written it" in err
    assert optsched_command(*words, "--overwrite")[0] == 0
    assert optsched_command(*words)[0] == 0


def test_without_a_place_for_its_notes_nothing_is_taken_for_ours(
    optsched_command, refused, tmp_path, monkeypatch
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    words = ("policies", "--json", tmp_path / "out.json")
    assert optsched_command(*words)[0] == 0
    assert "pass --overwrite" in refused(*words)
    assert optsched_command(*words, "--overwrite")[0] == 0
