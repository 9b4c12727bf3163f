"""What a client says of its requests, whatever it is, does nothing to the others."""

from dataclasses import replace

import fake_vllm
import literal_vllm
import numpy as np
import pytest
from effort import examples
from hypothesis import given
from hypothesis import strategies as st

import optsched_serving.plugin as inside
from optsched_serving.learning import OutputLearner, Seen
from optsched_serving.plugin import Settings
from optsched_serving.plugin.plan import Foresight

ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)
HUGE = st.sampled_from([10**400, -(10**400), 10**5000, 5e-324, 1.7e308, "1" * 5000])
CLAIMS = st.one_of(st.sampled_from([1.0, 1.5, 300.0, 1e9, 1.7e308]), st.floats(1, 1e12))


@pytest.mark.parametrize("chosen", [{}, {"trusted": True}, {"log_error": 0.4}, {"fair": True}])
@examples(40)
@given(
    said=st.lists(
        st.tuples(
            st.dictionaries(
                st.sampled_from(["client", "turn", "expected_output", "objective"]),
                ANYTHING | HUGE,
            ),
            st.integers(-3, 500),  # a session may leave no room for an output
            st.integers(1, 500),
        ),
        max_size=12,
    )
)
def test_whatever_is_said_of_requests_all_of_them_are_expected(chosen, said):
    seen = Foresight(Settings(**chosen), 100, (4,), 200)
    for index, (extra, limit, output) in enumerate(said):
        request = fake_vllm.Request(index, 10, 5, 0.0, extra_args=extra)
        expected = seen.expect(request, limit)
        look = seen.outlook(request, 0, expected)
        seen.arrives(request, expected, look)
        assert look.output <= max(limit, 1)
        assert seen.fair or np.isfinite(seen.key(10, max(look.output, 1)))
        request.made = max(min(output, limit), 1)
        seen.ended(request, expected, look.output, complete=True)
    plain = seen.expect(fake_vllm.Request(99, 10, 5, 0.0), 500)
    assert 1 <= plain.median <= 500
    assert 1 <= plain.mean <= 500


@examples(100)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 400), CLAIMS, CLAIMS), max_size=40),
    st.sampled_from([None, 5.0, 90.0]),
)
def test_what_one_client_claims_changes_nothing_for_another(rows, claim):
    learners = OutputLearner(), OutputLearner()
    for mine, output, *claims in rows:
        for learner, other in zip(learners, claims, strict=True):
            seen = Seen(9, 500, "a", claim=claim) if mine else Seen(9, 500, "b", claim=other)
            learner.learn(output, learner.expect(seen))
    first, second = (learner.expect(Seen(9, 500, "a", claim=claim)) for learner in learners)
    assert first == second


def test_a_plan_does_not_count_on_a_claim_far_above_what_is_usual_until_others_were_right():
    learner, rng = OutputLearner(), np.random.default_rng(1)
    for output in rng.integers(50, 200, 400).tolist():
        learner.learn(output, learner.expect(Seen(9, 100_000)))
    claimed = Seen(9, 100_000, "new", claim=1e9)
    assert learner.expect(claimed).median < 200 < learner.expect(claimed).mean
    for _ in range(100):
        large = Seen(9, 100_000, "large", claim=5000.0)
        learner.learn(5000, learner.expect(large))
    assert learner.expect(large).median == pytest.approx(5000, rel=0.1)


@pytest.mark.slow
@pytest.mark.no_cover
def test_honest_clients_wait_no_longer_whatever_others_say(vllm, benchmark, caplog):
    hostile = benchmark("hostile")
    case = literal_vllm.Settings(
        num_gpu_blocks=hostile.BLOCKS,
        block_size=hostile.BLOCK,
        max_num_seqs=hostile.SEATS,
        max_num_batched_tokens=hostile.BATCH,
    )

    def serve(work, said):
        requests = [
            fake_vllm.Request(index, *row[:3], extra_args=said[index], limit=work.limits[index])
            for index, row in enumerate(work.rows)
        ]
        outcome = literal_vllm.run(
            requests,
            replace(case),
            lambda content: hostile.SECONDS,
            scheduler=lambda case: inside.PlannedScheduler(
                *fake_vllm.config(case, {}, hostile.LONGEST)
            ),
        )
        ends = [outcome.spans[request.last][1] for request in requests]
        return np.array(ends) - [arrival for _, _, arrival, _ in work.rows]

    means = hostile.compared(serve, range(2 * len(hostile.HABITS)), seed=1)
    assert set(means) == set(hostile.HABITS)
    before, after = np.sum(list(means.values()), axis=0)
    assert after < 1.02 * before
    assert not [record for record in caplog.records if record.exc_info]
