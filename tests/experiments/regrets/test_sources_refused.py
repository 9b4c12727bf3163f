"""Sources that are none are refused in one sentence."""

import pytest

from optsched import OptschedError, family
from optsched.experiments.regret_cells import read_source


@pytest.mark.parametrize("source", [[[family("uniform", n=4)]], 3, None])
def test_what_is_no_source_is_refused(source):
    with pytest.raises(OptschedError, match=r"the source is .*, but must be an instance, a trace"):
        read_source(source)
