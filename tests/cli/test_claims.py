"""What the commands print of a bound never claims more than what is proven."""

import re
from fractions import Fraction

import pytest

import optsched


@pytest.mark.parametrize(
    ("value", "total", "each"), [(1234.56, "1,234.5", "617.2"), (2.99, "2.9", "1.4")]
)
def test_a_bound_is_printed_rounded_down(optsched_command, monkeypatch, value, total, each):
    """To the nearest, the first would be 1,234.6."""
    bound = optsched.Bound(value, "closed-form", 0.0)
    monkeypatch.setattr(optsched, "bound", lambda *_, **__: bound)
    said = optsched_command("bound", "family:uniform,n=2")[1]
    assert f"a total latency below {total} steps ({each} per request" in said


def test_the_value_of_a_certificate_is_printed_rounded_down(
    optsched_command, monkeypatch, tmp_path
):
    path = tmp_path / "proof.json"
    optsched_command("bound", "family:uniform,n=3", "--certificate", str(path))
    monkeypatch.setattr(optsched, "verify", lambda *_: Fraction(1, 3))
    said = optsched_command("check", "family:uniform,n=3", str(path))[1]
    assert "a total latency below 0.333" in said
    claimed = re.search(r"the certificate claims ([\d,.]+)", said)[1]
    exact = optsched.read_certificate(path).value
    assert Fraction(claimed.replace(",", "")) >= exact
