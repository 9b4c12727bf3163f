"""What the tests of readers share."""

import pytest


@pytest.fixture
def trace(tmp_path):
    """Write a trace and give its path."""

    def write(content, name="trace.csv"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write
