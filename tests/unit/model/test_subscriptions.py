"""Subscriptions at creation and at update, and as a client sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pubsubd.model import subscriptions
from pubsubd.model.errors import PubsubError
from pubsubd.wire import pb
from tests.unit.model.arbitrary import any_message
from tests.unit.model.conftest import DAY, SUBSCRIPTION, TOPIC, new_subscription, new_topic, refusal, seconds

DEAD_LETTERS = "projects/other/topics/dead-letters"
created = subscriptions.created_subscription
updated = subscriptions.updated_subscription


def ttl(value: float) -> dict[str, object]:
    return {"expiration_policy": {"ttl": seconds(value)}}


def update(*paths: str, **fields: object) -> pb.UpdateSubscriptionRequest:
    return pb.UpdateSubscriptionRequest(
        subscription=pb.Subscription(**{"name": SUBSCRIPTION, **fields}),
        update_mask=pb.FieldMask(paths=paths),
    )


# --- creation --------------------------------------------------------------------------------------------


def test_a_plain_subscription_is_returned_with_every_default() -> None:
    expected = new_subscription(
        push_config={},
        ack_deadline_seconds=10,
        message_retention_duration=seconds(7 * DAY),
        expiration_policy={"ttl": seconds(31 * DAY)},
        state=pb.Subscription.ACTIVE,
    )

    subscription = created(new_subscription())

    assert expected == subscription
    assert subscription.HasField("push_config")


def test_what_a_client_may_set_is_kept() -> None:
    request = new_subscription(
        push_config={},
        ack_deadline_seconds=600,
        retain_acked_messages=True,
        message_retention_duration=seconds(31 * DAY),
        labels={"env": "test"},
        expiration_policy={"ttl": seconds(365 * DAY)},
        enable_exactly_once_delivery=True,
        state=pb.Subscription.ACTIVE,
    )

    assert request == created(request)


def test_the_request_is_left_alone() -> None:
    request = new_subscription(tags={"a": "b"})

    created(request)

    assert new_subscription(tags={"a": "b"}) == request


def test_what_only_the_server_sets_is_ignored_and_tags_are_never_returned() -> None:
    request = new_subscription(
        detached=True,
        topic_message_retention_duration=seconds(DAY),
        state=pb.Subscription.RESOURCE_ERROR,
        analytics_hub_subscription_info={"listing": "l"},
        tags={"a": "b"},
    )

    assert created(new_subscription()) == created(request)


def test_an_empty_name_is_left_for_the_server_to_fill() -> None:
    assert created(new_subscription(name="")).name == ""


@pytest.mark.parametrize("name", ["billing", "projects/p/topics/billing", "projects/p/subscriptions/goog1"])
def test_a_bad_name_is_refused(name: str) -> None:
    assert f"(name={name})" in refusal("INVALID_ARGUMENT", created, new_subscription(name=name))


@pytest.mark.parametrize("topic", ["", "orders", "_deleted-topic_", SUBSCRIPTION])
def test_a_bad_topic_name_is_refused(topic: str) -> None:
    assert f"(name={topic})" in refusal("INVALID_ARGUMENT", created, new_subscription(topic=topic))


def test_the_topic_may_be_in_another_project() -> None:
    created(new_subscription(topic="projects/elsewhere/topics/orders"))


@pytest.mark.parametrize("ack_deadline_seconds", [10, 11, 600])
def test_an_ack_deadline_of_10_to_600_seconds_is_kept(ack_deadline_seconds: int) -> None:
    request = new_subscription(ack_deadline_seconds=ack_deadline_seconds, enable_exactly_once_delivery=True)

    assert ack_deadline_seconds == created(request).ack_deadline_seconds


@pytest.mark.parametrize("ack_deadline_seconds", [-(2**31), -1, 1, 9, 601, 2**31 - 1])
def test_any_other_ack_deadline_is_refused_with_the_range(ack_deadline_seconds: int) -> None:
    message = refusal(
        "INVALID_ARGUMENT", created, new_subscription(ack_deadline_seconds=ack_deadline_seconds)
    )

    assert f"Invalid ack deadline given (ack_deadline={ack_deadline_seconds})" in message
    assert "between 10 and 600 seconds" in message


def test_with_exactly_once_delivery_the_default_ack_deadline_is_60_seconds() -> None:
    assert created(new_subscription(enable_exactly_once_delivery=True)).ack_deadline_seconds == 60


@pytest.mark.parametrize("retention", [600, DAY, 31 * DAY])
def test_retention_of_10_minutes_to_31_days_is_kept(retention: float) -> None:
    request = new_subscription(message_retention_duration=seconds(retention))

    assert seconds(retention) == created(request).message_retention_duration


@pytest.mark.parametrize("retention", [0, 599, 599.999999999, 31 * DAY + 1, -1])
def test_retention_out_of_bounds_is_refused_with_both_bounds(retention: float) -> None:
    message = refusal(
        "INVALID_ARGUMENT", created, new_subscription(message_retention_duration=seconds(retention))
    )

    for words in ("message retention duration", "is out of bounds", "10m", "744h"):
        assert words in message


@pytest.mark.parametrize(("ttl_days", "retention_days"), [(1, 1), (6.5, 6.5), (7, 7), (30, 7)])
def test_default_retention_is_7_days_or_the_ttl_if_that_is_shorter(
    ttl_days: float, retention_days: float
) -> None:
    subscription = created(new_subscription(**ttl(ttl_days * DAY)))

    assert seconds(retention_days * DAY) == subscription.message_retention_duration


def test_an_expiration_policy_without_ttl_means_never() -> None:
    subscription = created(new_subscription(expiration_policy={}))

    assert subscription.HasField("expiration_policy")
    assert not subscription.expiration_policy.HasField("ttl")
    assert seconds(7 * DAY) == subscription.message_retention_duration


@pytest.mark.parametrize(
    ("value", "passed"), [(DAY - 1, "23h59m59s"), (0, "0s"), (DAY - 0.5, "23h59m59.5s"), (-DAY, "-24h")]
)
def test_a_ttl_below_a_day_is_too_small(value: float, passed: str) -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(**ttl(value)))

    for words in ("expiration duration", "is too small", f"{passed} was", "24h"):
        assert words in message


def test_a_ttl_above_a_year_is_too_large() -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(**ttl(365 * DAY + 1)))

    for words in ("expiration duration", "is too large", "8760h1s was", "8760h"):
        assert words in message


def test_a_ttl_shorter_than_the_retention_is_refused() -> None:
    request = new_subscription(message_retention_duration=seconds(3 * DAY), **ttl(2 * DAY))

    assert "(argument=expiration_policy.ttl)" in refusal("INVALID_ARGUMENT", created, request)


def test_a_ttl_equal_to_the_retention_is_accepted() -> None:
    created(new_subscription(message_retention_duration=seconds(3 * DAY), **ttl(3 * DAY)))


def test_a_bad_label_is_refused() -> None:
    assert "Invalid labels" in refusal("INVALID_ARGUMENT", created, new_subscription(labels={"A": ""}))


# --- features of later work: valid -----------------------------------------------------------------------

PUSH = {"push_config": {"push_endpoint": "https://example.com/push"}}
BIGQUERY = {"bigquery_config": {"table": "project.dataset.table"}}
CLOUD_STORAGE = {"cloud_storage_config": {"bucket": "bucket"}}
BIGTABLE = {"bigtable_config": {"table": "projects/p/instances/i/tables/t"}}
DEAD_LETTER = {"dead_letter_policy": {"dead_letter_topic": DEAD_LETTERS}}
UDF = {"function_name": "f", "code": "function f(m) { return m; }"}
LATER = {
    "bigquery_config": BIGQUERY,
    "cloud_storage_config": CLOUD_STORAGE,
    "bigtable_config": BIGTABLE,
    "message_transforms": {"message_transforms": [{"javascript_udf": UDF}]},
}


@pytest.mark.parametrize("field", LATER)
def test_a_valid_use_of_a_later_feature_is_unimplemented(field: str) -> None:
    assert f"Subscription.{field}" in refusal("UNIMPLEMENTED", created, new_subscription(**LATER[field]))


@pytest.mark.usefixtures("everything_implemented")
@pytest.mark.parametrize("field", LATER)
def test_a_later_feature_is_stored_once_it_is_implemented(field: str) -> None:
    subscription = created(new_subscription(**LATER[field]))

    assert field in {descriptor.name for descriptor, _ in subscription.ListFields()}


@pytest.mark.parametrize("field", sorted(LATER))
def test_an_update_that_would_turn_a_later_feature_on_is_unimplemented(field: str) -> None:
    current = created(new_subscription())
    # The ack deadline is named too, since the usual one is too short for an export to Cloud Storage.
    request = update(field, "ack_deadline_seconds", **LATER[field])

    refusal("UNIMPLEMENTED", updated, current, request)


@pytest.mark.parametrize("field", sorted(LATER))
def test_an_update_that_clears_a_later_feature_is_fine(field: str) -> None:
    current = created(new_subscription())

    assert current == updated(current, update(field))


# --- features of later work: their own rules -------------------------------------------------------------


@pytest.mark.parametrize("text", ["x" * 257, "é" * 129])
def test_a_filter_above_256_bytes_is_refused(text: str) -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(filter=text))

    assert "filter" in message and "256" in message


def test_a_filter_of_256_bytes_is_short_enough() -> None:
    text = "attributes:" + "x" * 245

    assert text == created(new_subscription(filter=text)).filter


def test_a_filter_that_is_none_is_refused_by_the_name_of_the_field() -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(filter="attributes:a and attributes:b"))

    assert "(argument=filter)" in message


@pytest.mark.parametrize("topic", ["", "nonsense", "_deleted-topic_"])
def test_a_bad_dead_letter_topic_is_refused_by_the_name_of_the_field(topic: str) -> None:
    request = new_subscription(dead_letter_policy={"dead_letter_topic": topic})

    assert f"(dead_letter_topic={topic})" in refusal("INVALID_ARGUMENT", created, request)


def test_a_dead_letter_topic_that_is_the_topic_itself_is_refused() -> None:
    request = new_subscription(dead_letter_policy={"dead_letter_topic": TOPIC})

    refusal("INVALID_ARGUMENT", created, request)


@pytest.mark.parametrize(
    ("attempts", "words"), [(4, "too small"), (1, "too small"), (-1, "too small"), (101, "too large")]
)
def test_delivery_attempts_outside_5_to_100_are_refused(attempts: int, words: str) -> None:
    policy = {"dead_letter_topic": DEAD_LETTERS, "max_delivery_attempts": attempts}

    message = refusal("INVALID_ARGUMENT", created, new_subscription(dead_letter_policy=policy))

    assert "max_delivery_attempts" in message and words in message


@pytest.mark.usefixtures("everything_implemented")
@pytest.mark.parametrize(("attempts", "effective"), [(0, 5), (5, 5), (100, 100)])
def test_delivery_attempts_default_to_5(attempts: int, effective: int) -> None:
    policy = {"dead_letter_topic": DEAD_LETTERS, "max_delivery_attempts": attempts}

    subscription = created(new_subscription(dead_letter_policy=policy))

    assert effective == subscription.dead_letter_policy.max_delivery_attempts


@pytest.mark.parametrize("field", ["minimum_backoff", "maximum_backoff"])
@pytest.mark.parametrize("value", [-1, 600.001, 601])
def test_a_backoff_out_of_bounds_is_refused_with_both_bounds(field: str, value: float) -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(retry_policy={field: seconds(value)}))

    for words in (field, "is out of bounds", "0s", "600s"):
        assert words in message


@pytest.mark.parametrize(
    ("policy", "passed", "minimum"),
    [
        ({"minimum_backoff": seconds(20), "maximum_backoff": seconds(1.5)}, "1.500s", "20s"),
        ({"maximum_backoff": seconds(9)}, "9s", "10s"),  # below the default of the other
    ],
)
def test_a_maximum_backoff_below_the_minimum_is_too_small(
    policy: dict[str, object], passed: str, minimum: str
) -> None:
    message = refusal("INVALID_ARGUMENT", created, new_subscription(retry_policy=policy))

    for words in ("maximum_backoff", "is too small", f"{passed} was", minimum):
        assert words in message


@pytest.mark.usefixtures("everything_implemented")
def test_a_retry_policy_is_returned_with_its_defaults() -> None:
    policy = created(new_subscription(retry_policy={})).retry_policy

    assert (seconds(10), seconds(600)) == (policy.minimum_backoff, policy.maximum_backoff)


@pytest.mark.usefixtures("everything_implemented")
def test_backoffs_of_zero_are_kept() -> None:
    request = new_subscription(retry_policy={"minimum_backoff": {}, "maximum_backoff": {}})

    policy = created(request).retry_policy

    assert (seconds(0), seconds(0)) == (policy.minimum_backoff, policy.maximum_backoff)


# --- one way of delivery ---------------------------------------------------------------------------------


@pytest.mark.parametrize("other", [BIGQUERY, CLOUD_STORAGE, BIGTABLE])
def test_push_and_export_cannot_be_combined(other: dict[str, object]) -> None:
    assert "push_config" in refusal("INVALID_ARGUMENT", created, new_subscription(**PUSH, **other))


@pytest.mark.parametrize("other", [CLOUD_STORAGE, BIGTABLE])
def test_two_exports_cannot_be_combined(other: dict[str, object]) -> None:
    assert "bigquery_config" in refusal("INVALID_ARGUMENT", created, new_subscription(**BIGQUERY, **other))


@pytest.mark.parametrize("delivery", [PUSH, BIGQUERY, CLOUD_STORAGE, BIGTABLE])
def test_exactly_once_is_for_pull_subscriptions_only(delivery: dict[str, object]) -> None:
    request = new_subscription(enable_exactly_once_delivery=True, **delivery)

    assert "enable_exactly_once_delivery" in refusal("INVALID_ARGUMENT", created, request)


@pytest.mark.parametrize("delivery", [PUSH, BIGQUERY, CLOUD_STORAGE, BIGTABLE])
def test_an_exactly_once_subscription_cannot_be_updated_to_push_or_export(
    delivery: dict[str, object],
) -> None:
    current = created(new_subscription(enable_exactly_once_delivery=True))

    refusal("INVALID_ARGUMENT", updated, current, update(*delivery, **delivery))


@pytest.mark.usefixtures("everything_implemented")
def test_a_push_subscription_cannot_be_updated_to_exactly_once() -> None:
    current = created(new_subscription(**PUSH))
    request = update("enable_exactly_once_delivery", enable_exactly_once_delivery=True)

    refusal("INVALID_ARGUMENT", updated, current, request)


@pytest.mark.usefixtures("everything_implemented")
@pytest.mark.parametrize(
    ("config", "ack_deadline_seconds"),
    [({}, 300), ({"max_duration": seconds(60)}, 300), ({"max_duration": seconds(600)}, 600)],
)
def test_a_cloud_storage_subscription_has_an_ack_deadline_that_covers_its_longest_file(
    config: dict[str, object], ack_deadline_seconds: int
) -> None:
    subscription = created(new_subscription(cloud_storage_config={"bucket": "b", **config}))

    assert ack_deadline_seconds == subscription.ack_deadline_seconds


def test_a_file_that_lasts_longer_than_the_ack_deadline_is_refused() -> None:
    config = {"bucket": "b", "max_duration": seconds(61)}
    request = new_subscription(cloud_storage_config=config, ack_deadline_seconds=60)

    assert "max_duration" in refusal("INVALID_ARGUMENT", created, request)


@pytest.mark.usefixtures("everything_implemented")
@pytest.mark.parametrize("delivery", [BIGQUERY, CLOUD_STORAGE, BIGTABLE])
def test_an_export_is_returned_as_active_whatever_the_client_sent(delivery: dict[str, object]) -> None:
    ((field, config),) = delivery.items()
    assert isinstance(config, dict)

    subscription = created(new_subscription(**{field: {**config, "state": 2}}))

    assert getattr(subscription, field).state == 1


# --- update ----------------------------------------------------------------------------------------------


@pytest.fixture
def current() -> pb.Subscription:
    return created(
        new_subscription(
            ack_deadline_seconds=30,
            retain_acked_messages=True,
            message_retention_duration=seconds(DAY),
            labels={"env": "test"},
            expiration_policy={"ttl": seconds(2 * DAY)},
            enable_exactly_once_delivery=True,
        )
    )


def test_an_update_without_a_subscription_is_refused() -> None:
    request = pb.UpdateSubscriptionRequest(update_mask=pb.FieldMask(paths=["labels"]))

    message = refusal("INVALID_ARGUMENT", subscriptions.check_subscription_update, request)

    assert "(argument=subscription)" in message


def test_an_update_with_a_bad_name_is_refused() -> None:
    message = refusal(
        "INVALID_ARGUMENT", subscriptions.check_subscription_update, update("labels", name="billing")
    )

    assert "(name=billing)" in message


@pytest.mark.parametrize("mask", [None, pb.FieldMask()])
def test_an_update_without_a_mask_is_refused(mask: pb.FieldMask | None) -> None:
    request = pb.UpdateSubscriptionRequest(subscription=new_subscription(), update_mask=mask)

    message = refusal("INVALID_ARGUMENT", subscriptions.check_subscription_update, request)

    assert "update_mask in UpdateSubscriptionRequest must be set" in message


@pytest.mark.parametrize(
    "path",
    [
        "name",
        "topic",
        "enable_message_ordering",
        "filter",
        "detached",
        "tags",
        "state",
        "topic_message_retention_duration",
        "analytics_hub_subscription_info",
    ],
)
def test_an_immutable_field_in_the_mask_is_refused(current: pb.Subscription, path: str) -> None:
    message = refusal("INVALID_ARGUMENT", updated, current, update("labels", path))

    assert f"'{path}' is not mutable" in message


@pytest.mark.parametrize(
    "path",
    [
        "",
        "*",
        "nonsense",
        "labels.env",
        "ackDeadlineSeconds",
        "push_config.push_endpoint",
        "expiration_policy.ttl",
        "dead_letter_policy.max_delivery_attempts",
    ],
)
def test_an_unknown_path_in_the_mask_is_refused(current: pb.Subscription, path: str) -> None:
    message = refusal("INVALID_ARGUMENT", updated, current, update("labels", path))

    assert "is not a known Subscription field" in message


def test_a_refused_update_changes_nothing(current: pb.Subscription) -> None:
    before = current.SerializeToString(deterministic=True)

    refusal("INVALID_ARGUMENT", updated, current, update("labels", "topic", labels={"a": "b"}))

    assert before == current.SerializeToString(deterministic=True)


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("ack_deadline_seconds", {"ack_deadline_seconds": 20}),
        ("retain_acked_messages", {"retain_acked_messages": False}),
        ("message_retention_duration", {"message_retention_duration": seconds(DAY + 1)}),
        ("labels", {"labels": {"team": "x"}}),
        ("expiration_policy", {"expiration_policy": {"ttl": seconds(DAY)}}),
        ("enable_exactly_once_delivery", {"enable_exactly_once_delivery": False}),
    ],
)
def test_a_masked_field_is_replaced_and_nothing_else(
    current: pb.Subscription, path: str, fields: dict[str, object]
) -> None:
    expected = pb.Subscription()
    expected.CopyFrom(current)
    expected.ClearField(path)
    expected.MergeFrom(pb.Subscription(**fields))

    assert expected == updated(current, update(path, **fields))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("ack_deadline_seconds", 60),  # what creation gives with exactly-once on
        ("retain_acked_messages", False),
        ("labels", {}),
        ("message_retention_duration", seconds(2 * DAY)),  # 7 days, or the ttl
        ("expiration_policy", pb.ExpirationPolicy(ttl=seconds(31 * DAY))),
        ("enable_exactly_once_delivery", False),
    ],
)
def test_a_masked_field_that_is_absent_goes_back_to_its_default(
    current: pb.Subscription, path: str, value: object
) -> None:
    assert value == getattr(updated(current, update(path)), path)


def test_the_default_ack_deadline_follows_the_mode_that_the_update_sets(current: pb.Subscription) -> None:
    request = update("ack_deadline_seconds", "enable_exactly_once_delivery")

    assert updated(current, request).ack_deadline_seconds == 10


def test_switching_exactly_once_on_leaves_the_ack_deadline_alone() -> None:
    standard = created(new_subscription())
    request = update("enable_exactly_once_delivery", enable_exactly_once_delivery=True)

    assert updated(standard, request).ack_deadline_seconds == 10


def test_the_default_retention_follows_the_ttl_that_the_update_sets(current: pb.Subscription) -> None:
    request = update("message_retention_duration", "expiration_policy", expiration_policy={})

    assert seconds(7 * DAY) == updated(current, request).message_retention_duration


def test_an_empty_expiration_policy_in_the_mask_means_never(current: pb.Subscription) -> None:
    subscription = updated(current, update("expiration_policy", expiration_policy={}))

    assert not subscription.expiration_policy.HasField("ttl")


def test_fields_outside_the_mask_are_ignored_even_when_invalid(current: pb.Subscription) -> None:
    request = update("labels", labels={"a": "b"}, ack_deadline_seconds=5, topic="nonsense", filter="x" * 300)

    subscription = updated(current, request)

    assert (subscription.ack_deadline_seconds, subscription.topic, subscription.filter) == (30, TOPIC, "")


@pytest.mark.parametrize(
    "fields",
    [
        {"ack_deadline_seconds": 9},
        {"labels": {"A": ""}},
        {"message_retention_duration": seconds(1)},
        {"expiration_policy": {"ttl": seconds(1)}},
        {"push_config": {"push_endpoint": "ftp://x"}},
        {"bigquery_config": {}},
        {"cloud_storage_config": {}},
        {"bigtable_config": {}},
        {"dead_letter_policy": {}},
        {"retry_policy": {"minimum_backoff": seconds(601)}},
        {"message_transforms": [{}]},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_masked_field_is_checked_as_at_creation_and_without_the_subscription(
    fields: dict[str, object],
) -> None:
    refusal("INVALID_ARGUMENT", subscriptions.check_subscription_update, update(*fields, **fields))
    refusal("INVALID_ARGUMENT", created, new_subscription(**fields))


def test_rules_between_fields_hold_for_the_result_of_an_update(current: pb.Subscription) -> None:
    request = update("message_retention_duration", message_retention_duration=seconds(3 * DAY))

    assert "expiration_policy.ttl" in refusal("INVALID_ARGUMENT", updated, current, request)


def test_an_update_keeps_what_the_server_wrote(current: pb.Subscription) -> None:
    current.detached = True
    current.state = pb.Subscription.RESOURCE_ERROR

    subscription = updated(current, update("labels"))

    assert (subscription.detached, subscription.state) == (True, pb.Subscription.RESOURCE_ERROR)


# --- as a client sees it ---------------------------------------------------------------------------------


def test_topic_retention_is_shown_if_and_only_if_the_topic_has_it(current: pb.Subscription) -> None:
    topic = new_topic(message_retention_duration=seconds(DAY))

    shown = subscriptions.shown_subscription(current, topic)

    assert seconds(DAY) == shown.topic_message_retention_duration
    assert current == subscriptions.shown_subscription(shown, new_topic())


def test_a_deleted_topic_is_shown_as_such(current: pb.Subscription) -> None:
    current.topic_message_retention_duration.seconds = DAY

    shown = subscriptions.shown_subscription(current, None)

    assert shown.topic == "_deleted-topic_"
    assert not shown.HasField("topic_message_retention_duration")
    assert current.topic == TOPIC


def test_tags_are_never_shown(current: pb.Subscription) -> None:
    current.tags["a"] = "b"

    assert not subscriptions.shown_subscription(current, None).tags


def test_a_pull_subscription_can_be_pulled(current: pb.Subscription) -> None:
    subscriptions.check_pullable(current)


@pytest.mark.parametrize("delivery", [PUSH, BIGQUERY, CLOUD_STORAGE, BIGTABLE])
def test_a_push_or_export_subscription_cannot_be_pulled(delivery: dict[str, object]) -> None:
    message = refusal("FAILED_PRECONDITION", subscriptions.check_pullable, new_subscription(**delivery))

    assert "This method is not supported" in message


def test_a_detached_subscription_cannot_be_pulled(current: pb.Subscription) -> None:
    current.detached = True

    assert "detached" in refusal("FAILED_PRECONDITION", subscriptions.check_pullable, current)


# --- anything at all -------------------------------------------------------------------------------------


@given(any_message(pb.Subscription), st.booleans())
def test_any_message_makes_a_subscription_or_a_refusal(request: pb.Subscription, is_named: bool) -> None:
    if is_named:
        request.name, request.topic = SUBSCRIPTION, TOPIC
    try:
        subscription = created(request)
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()
    else:
        assert subscription == created(subscription)


FIELDS = [field.name for field in pb.Subscription.DESCRIPTOR.fields]


@given(any_message(pb.Subscription), st.lists(st.text() | st.sampled_from(FIELDS), max_size=4))
def test_any_update_makes_a_subscription_or_a_refusal(request: pb.Subscription, paths: list[str]) -> None:
    request.name = SUBSCRIPTION
    mask = pb.FieldMask(paths=paths)
    try:
        updated(
            created(new_subscription()),
            pb.UpdateSubscriptionRequest(subscription=request, update_mask=mask),
        )
    except PubsubError as error:
        assert error.message.isascii() and error.message.isprintable()


@pytest.mark.usefixtures("everything_implemented")
def test_what_creation_returns_can_be_created_again_unchanged() -> None:
    for fields in LATER.values():
        subscription = created(new_subscription(**fields))

        assert subscription == created(subscription)
