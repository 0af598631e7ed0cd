"""Every run has all features, and each run other combinations of them."""

from __future__ import annotations

import random
from collections import Counter

from pubsubd.model.subscriptions import created_subscription
from pubsubd.wire import pb
from tests.crash.filters import FILTERS, draw_attributes, matches
from tests.crash.plan import TOPICS, draw


def test_every_run_has_all_features() -> None:
    for seed in range(30):
        plan = draw(random.Random(seed))
        counts = Counter(feature for one in plan.watched for feature in one.features())
        assert set(counts) == {
            *("exactly_once", "ordered", "filter", "retry", "dead_letter", "retain_acked"),
            *("retention", "seeks", "updates", "acks_on_stream"),
        }, seed
        assert sorted(plan.topics[topic] > 0 for topic in TOPICS) == [False, True]
        # Some can be judged without a look at the journal.
        assert sum(one.judged_from_outside for one in plan.watched) >= 3


def test_runs_differ() -> None:
    plans = {str(draw(random.Random(seed))) for seed in range(10)}
    assert len(plans) == 10
    assert draw(random.Random(1)) == draw(random.Random(1))


def test_the_server_takes_every_filter() -> None:
    for text in FILTERS:
        request = pb.Subscription(
            name="projects/p/subscriptions/s1234", topic="projects/p/topics/t1234", filter=text
        )
        assert created_subscription(request).filter == text


def test_every_filter_lets_some_messages_through_and_not_others() -> None:
    chance = random.Random(1)
    drawn = [draw_attributes(chance) for _ in range(300)]
    for text in FILTERS:
        assert 30 < sum(matches(text, attributes) for attributes in drawn) < 270, text
    assert all(matches("", attributes) for attributes in drawn)
