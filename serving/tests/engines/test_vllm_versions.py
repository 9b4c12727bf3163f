"""The schedulers of two versions of vLLM, recorded on workloads of our own."""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from vllm_runs import CLOCK, kernel_run

from optsched.errors import PolicyError
from optsched.policies import get_policy

RECORDINGS = Path(__file__).parents[1] / "recordings" / "vllm_versions.npz"
VERSIONS = ("0.33", "0.32")
#: Options that the later recordings of 0.33 have.
MORE = {
    *("max_num_active_seqs", "long_prefill_token_threshold", "prefill_schedule_interval"),
    *("long_prefill_token_threshold_adaptive", "enable_chunked_prefill", "max_model_len"),
}


@pytest.fixture(scope="module")
def recorded():
    with np.load(RECORDINGS) as arrays:
        found = dict(arrays)
    cases = json.loads(str(found.pop("cases")))
    names = ("rows", "contents", "first", "last")
    return [(case, [found[f"{name}{at}"] for name in names]) for at, case in enumerate(cases)]


def is_equal(case, did, version):
    """Whether the simulator does what a version of vLLM did."""
    rows, contents, first, last = did
    options = case["options"] | {"version": version}
    run, order = kernel_run(case["requests"], options, CLOCK, name=case["policy"])
    return (
        np.array_equal(run.statistics, rows)
        and np.array_equal(run.log.contents, contents)
        and np.abs(run.first_tokens - first[order]).max() < 1e-9
        and np.abs(run.completions - last[order]).max() < 1e-9
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_those_of_the_version(recorded, version):
    cases = [(case, did) for case, did in recorded if case["version"] == f"{version}.0"]
    kinds = 1 + (version == "0.33")  # the later ones with more options
    assert Counter(case["policy"] for case, _ in cases) == {
        "vllm": 20 * kinds,
        "vllm:area": 10 * kinds,
    }
    assert sum(did[0][:, 5].sum() for _, did in cases) > 250
    assert [case for case, did in cases if not is_equal(case, did, version)] == []


def test_versions_differ_only_where_priorities_decide(recorded):
    other = dict(zip(VERSIONS, reversed(VERSIONS), strict=True))
    apart = [
        case["options"]["policy"]
        for case, did in recorded
        if not MORE & case["options"].keys()
        and not is_equal(case, did, other[case["version"].removesuffix(".0")])
    ]
    assert len(apart) > 10
    assert set(apart) == {"priority"}


def test_a_version_whose_scheduler_is_not_known_is_refused():
    with pytest.raises(PolicyError, match=r"version is '0.31', but must be 0.32 or 0.33, whose"):
        replace(get_policy("vllm"), version="0.31")
