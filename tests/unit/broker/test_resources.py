"""Topics and subscriptions: created, listed, changed, deleted, and what their names mean afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pubsubd.model import errors
from pubsubd.model.events import Kind
from pubsubd.model.names import DELETED_TOPIC
from pubsubd.wire import pb
from tests.unit.broker.world import PROJECT, SUBSCRIPTION, TOPIC, World, check, restored, states

OTHER_TOPIC = "projects/p/topics/invoices"
OTHER = "projects/p/subscriptions/other"


def delete_topic(world: World, name: str = TOPIC) -> None:
    world.broker.delete_topic(pb.DeleteTopicRequest(topic=name), world.now_us)


def delete_subscription(world: World, name: str = SUBSCRIPTION) -> None:
    world.broker.delete_subscription(pb.DeleteSubscriptionRequest(subscription=name), world.now_us)


def detach(world: World, name: str = SUBSCRIPTION) -> None:
    world.broker.detach_subscription(pb.DetachSubscriptionRequest(subscription=name), world.now_us)


def topics(world: World) -> list[str]:
    return [topic.name for topic in world.broker.list_topics(pb.ListTopicsRequest(project=PROJECT)).topics]


def subscriptions(world: World) -> list[str]:
    request = pb.ListSubscriptionsRequest(project=PROJECT)
    return [one.name for one in world.broker.list_subscriptions(request).subscriptions]


def attached(world: World, topic: str = TOPIC) -> list[str]:
    request = pb.ListTopicSubscriptionsRequest(topic=topic)
    return list(world.broker.list_topic_subscriptions(request).subscriptions)


def shown(world: World, name: str = SUBSCRIPTION) -> pb.Subscription:
    return world.broker.get_subscription(pb.GetSubscriptionRequest(subscription=name))


# -- existence ---------------------------------------------------------------------------------------------


def test_what_was_created_is_there_and_after_a_restart(eod: World) -> None:
    eod.create_topic(OTHER_TOPIC, labels={"env": "test"})
    eod.turn()
    eod.crash()

    assert topics(eod) == [OTHER_TOPIC, TOPIC]
    assert eod.broker.get_topic(pb.GetTopicRequest(topic=OTHER_TOPIC)).labels == {"env": "test"}
    assert [SUBSCRIPTION] == subscriptions(eod) == attached(eod)


def test_a_name_is_given_once(eod: World) -> None:
    with pytest.raises(errors.AlreadyExists, match="resource=orders"):
        eod.create_topic()
    with pytest.raises(errors.AlreadyExists, match="resource=billing"):
        eod.create_subscription()
    assert topics(eod) == [TOPIC]


def test_a_subscription_needs_its_topic_and_leaves_nothing_without(world: World) -> None:
    with pytest.raises(errors.NotFound, match="resource=invoices"):
        world.create_subscription(topic=OTHER_TOPIC)

    assert subscriptions(world) == []
    assert not world.broker.take_effects().must_commit()


def test_a_subscription_without_a_name_gets_one(world: World) -> None:
    made = world.broker.create_subscription(pb.Subscription(topic=TOPIC), "unique", world.now_us)

    assert made.name.startswith(f"{PROJECT}/subscriptions/") and "unique" in made.name
    assert [made.name] == subscriptions(world)


MISSING: list[Callable[[World], object]] = [
    lambda world: world.broker.get_topic(pb.GetTopicRequest(topic=OTHER_TOPIC)),
    lambda world: delete_topic(world, OTHER_TOPIC),
    lambda world: world.publish(b"x", topic=OTHER_TOPIC),
    lambda world: attached(world, OTHER_TOPIC),
    lambda world: world.broker.update_topic(
        pb.UpdateTopicRequest(topic=pb.Topic(name=OTHER_TOPIC), update_mask=pb.FieldMask(paths=["labels"])),
        world.now_us,
    ),
    lambda world: shown(world, OTHER),
    lambda world: delete_subscription(world, OTHER),
    lambda world: detach(world, OTHER),
    lambda world: world.switch(True, OTHER),
    lambda world: world.acknowledge(["x"], OTHER),
    lambda world: world.modify_ack_deadline(["x"], 10, OTHER),
    lambda world: world.open_pull(OTHER),
    lambda world: world.open_stream(OTHER),
]


@pytest.mark.parametrize("call", MISSING)
def test_what_does_not_exist_is_not_found_and_nothing_changes(
    eod: World, call: Callable[[World], object]
) -> None:
    before = states(eod.broker)

    with pytest.raises(errors.NotFound):
        call(eod)

    assert before == states(eod.broker)
    effects = eod.broker.take_effects()
    assert not (effects.records or effects.topics or effects.subscriptions or effects.messages)
    assert not [event for event in effects.events if event[1] != Kind.STREAM]


# -- lists -------------------------------------------------------------------------------------------------


def test_lists_are_cut_into_pages_in_the_order_of_names(world: World) -> None:
    names = [f"{PROJECT}/topics/t{n:02}" for n in (3, 1, 2, 5, 4)]
    for name in names:
        world.create_topic(name)
    found: list[str] = []
    token = ""
    while True:
        request = pb.ListTopicsRequest(project=PROJECT, page_size=2, page_token=token)
        response = world.broker.list_topics(request)
        found += [topic.name for topic in response.topics]
        token = response.next_page_token
        if not token:
            break

    assert sorted([*names, TOPIC]) == found


def test_a_token_is_good_after_a_restart_and_in_its_own_list_only(eod: World) -> None:
    eod.create_subscription(OTHER)
    eod.turn()
    first = eod.broker.list_subscriptions(pb.ListSubscriptionsRequest(project=PROJECT, page_size=1))
    token = first.next_page_token
    eod.crash()

    request = pb.ListSubscriptionsRequest(project=PROJECT, page_size=1, page_token=token)
    assert [one.name for one in eod.broker.list_subscriptions(request).subscriptions] == [OTHER]
    with pytest.raises(errors.InvalidArgument):
        eod.broker.list_topics(pb.ListTopicsRequest(project=PROJECT, page_token=token))
    with pytest.raises(errors.InvalidArgument):
        eod.broker.list_topic_subscriptions(pb.ListTopicSubscriptionsRequest(topic=TOPIC, page_token=token))


def test_lists_know_their_project(eod: World) -> None:
    eod.create_topic("projects/pp/topics/orders")
    eod.create_subscription("projects/pp/subscriptions/billing")

    assert topics(eod) == [TOPIC]
    assert subscriptions(eod) == [SUBSCRIPTION]
    # A subscription may be of another project than its topic.
    assert attached(eod) == [SUBSCRIPTION, "projects/pp/subscriptions/billing"]


# -- deletion and detachment -------------------------------------------------------------------------------


def test_the_backlog_of_a_deleted_topic_is_still_delivered(eod: World) -> None:
    consumer = eod.open_stream()
    eod.publish(b"a", b"b")
    delete_topic(eod)
    eod.settle()

    assert consumer.shell.message_ids == [1, 2]
    assert consumer.shell.errors == [], "streams stay open"
    assert shown(eod).topic == DELETED_TOPIC
    eod.crash()
    assert shown(eod).topic == DELETED_TOPIC
    assert topics(eod) == []
    eod.advance(11)
    assert [lease.message_id for lease in eod.pull()] == [1, 2]


def test_a_new_topic_of_the_same_name_is_another_topic(eod: World) -> None:
    eod.publish(b"old")
    delete_topic(eod)
    eod.create_topic()
    eod.publish(b"new")
    eod.turn()
    eod.crash()

    assert [lease.message_id for lease in eod.pull()] == [1]
    assert attached(eod) == []
    assert shown(eod).topic == DELETED_TOPIC
    assert topics(eod) == [TOPIC]


def test_a_deleted_topic_goes_with_its_last_subscription(eod: World) -> None:
    eod.create_subscription(OTHER)
    eod.publish(b"x")
    delete_topic(eod)
    eod.turn()
    assert len(eod.store.topics) == 1

    delete_subscription(eod, OTHER)
    eod.turn()
    assert len(eod.store.topics) == 1
    assert len(eod.store.chunks[1]) == 1

    delete_subscription(eod)
    eod.turn()
    assert {} == eod.store.topics == eod.store.subscriptions
    assert eod.store.chunks[1] == {}
    assert eod.broker._topics_by_id == {}


def test_deleting_a_subscription_closes_its_streams_and_pulls(eod: World) -> None:
    stream, pull = eod.open_stream(), eod.open_pull()
    delete_subscription(eod)
    assert stream.shell.errors == [], "nothing is said before the commit"
    eod.turn()

    for consumer in (stream, pull):
        (error,) = consumer.shell.errors
        assert isinstance(error, errors.NotFound)
    eod.close_stream(stream)
    eod.broker.close_pull(pull)
    check(eod.broker)


def test_a_subscription_of_the_same_name_owes_nothing_of_the_old_one(eod: World) -> None:
    eod.publish(b"a", b"b")
    (old, _) = eod.pull()
    delete_subscription(eod)
    eod.create_subscription()
    eod.turn()

    assert eod.pull() == []
    assert [old.ack_id] == eod.acknowledge([old.ack_id])
    eod.publish(b"c")
    (new,) = eod.pull()
    assert new.message_id == 3
    assert [old.ack_id] == eod.acknowledge([old.ack_id, new.ack_id])
    assert eod.owed() == []


def test_numbers_of_incarnations_are_never_used_twice(eod: World) -> None:
    seen = {eod.subscription().sub_id}
    for _ in range(3):
        delete_subscription(eod)
        eod.turn()
        eod.crash()
        eod.create_subscription()
        eod.turn()
        assert eod.subscription().sub_id not in seen
        seen.add(eod.subscription().sub_id)


def test_a_detached_subscription_has_nothing_and_gets_nothing(eod: World) -> None:
    stream, pull = eod.open_stream(max_outstanding_messages=1), eod.open_pull(max_messages=1)
    eod.publish(b"a", b"b", b"c")
    eod.turn()
    waiting = eod.open_pull()
    detach(eod)
    eod.turn()

    for consumer in (stream, waiting):
        (error,) = consumer.shell.errors
        assert isinstance(error, errors.FailedPrecondition)
    assert pull.shell.errors == [], "it had its answer"
    assert shown(eod).detached
    assert attached(eod) == []
    assert subscriptions(eod) == [SUBSCRIPTION]
    eod.publish(b"d")
    eod.turn()
    subscription = eod.subscription()
    assert (eod.owed(), len(subscription.leases), subscription.waiting_count) == ([], 0, 0)
    assert eod.store.chunks[1] == {}, "nobody needs the messages any more"
    check(eod.broker)
    assert states(eod.broker) == states(restored(eod.store))


def test_a_detached_subscription_cannot_be_consumed_or_detached(eod: World) -> None:
    detach(eod)

    for call in (eod.open_stream, eod.open_pull, lambda: detach(eod)):
        with pytest.raises(errors.FailedPrecondition):
            call()


def test_detaching_from_a_deleted_topic_is_not_found(eod: World) -> None:
    delete_topic(eod)

    with pytest.raises(errors.NotFound):
        detach(eod)
    assert not shown(eod).detached


def test_the_journal_says_that_detached_messages_are_gone(eod: World) -> None:
    eod.publish(b"a", b"b")
    (lease,) = eod.pull(max_messages=1)
    detach(eod)
    eod.turn()

    reset, drop, config = eod.events(Kind.RESET, Kind.DROP, Kind.CONFIG)[-3:]
    assert (Kind.RESET, lease.message_id, 1) == (reset.kind, reset.message_id, reset.generation)
    assert (drop.kind, drop.message_id) == (Kind.DROP, 0)
    assert drop.aux > eod.now_us, "all that was published so far"
    assert config.kind == Kind.CONFIG


# -- changes -----------------------------------------------------------------------------------------------


def test_a_switch_is_told_to_streams_that_stay_open(eod: World) -> None:
    consumer = eod.open_stream()
    eod.switch(exactly_once=False)
    assert consumer.shell.properties_changed_count == 0
    eod.turn()
    eod.switch(exactly_once=False)
    eod.turn()

    assert consumer.shell.properties_changed_count == 1
    assert consumer.shell.errors == []
    assert (
        not restored(eod.store)
        .get_subscription(pb.GetSubscriptionRequest(subscription=SUBSCRIPTION))
        .enable_exactly_once_delivery
    )


def test_leases_survive_a_switch_and_are_judged_by_the_new_mode(std: World) -> None:
    std.publish(b"a", b"b")
    a, b = std.pull()
    deadline_us = a.deadline_us
    std.switch(exactly_once=True)
    assert [deadline_us] * 2 == [lease.deadline_us for lease in std.subscription().leases]
    assert std.acknowledge([a.ack_id]) == []
    std.advance(11)
    assert [b.ack_id] == std.acknowledge([b.ack_id])
    std.switch(exactly_once=False)
    assert std.acknowledge([b.ack_id]) == []
    assert std.owed() == []


def modify_push_config(world: World, endpoint: str, name: str = SUBSCRIPTION) -> None:
    config = pb.PushConfig(push_endpoint=endpoint)
    request = pb.ModifyPushConfigRequest(subscription=name, push_config=config)
    world.broker.modify_push_config(request, world.now_us)


def test_a_push_config_is_modified_by_the_rules_of_an_update(world: World) -> None:
    world.create_subscription()
    world.create_subscription(OTHER, exactly_once=False)

    modify_push_config(world, "")
    assert not shown(world).push_config.push_endpoint
    with pytest.raises(errors.InvalidArgument):
        modify_push_config(world, "http://localhost:1/push")
    with pytest.raises(errors.InvalidArgument):
        modify_push_config(world, "no address", OTHER)
    modify_push_config(world, "http://localhost:1/push", OTHER)
    assert shown(world, OTHER).push_config.push_endpoint == "http://localhost:1/push"
    with pytest.raises(errors.NotFound):
        modify_push_config(world, "", "projects/p/subscriptions/nobody")


def test_a_topic_is_updated(world: World) -> None:
    request = pb.UpdateTopicRequest(
        topic=pb.Topic(name=TOPIC, labels={"env": "prod"}), update_mask=pb.FieldMask(paths=["labels"])
    )
    world.broker.update_topic(request, world.now_us)
    world.turn()
    world.crash()

    assert world.broker.get_topic(pb.GetTopicRequest(topic=TOPIC)).labels == {"env": "prod"}


def test_a_changed_ack_deadline_is_for_later_pulls(eod: World) -> None:
    eod.publish(b"a", b"b")
    (first,) = eod.pull(max_messages=1)
    request = pb.UpdateSubscriptionRequest(
        subscription=pb.Subscription(name=SUBSCRIPTION, ack_deadline_seconds=60),
        update_mask=pb.FieldMask(paths=["ack_deadline_seconds"]),
    )
    eod.broker.update_subscription(request, eod.now_us)
    (second,) = eod.pull(max_messages=1)

    assert eod.now_us + 10_000_000 == first.deadline_us
    assert eod.now_us + 60_000_000 == second.deadline_us


def test_what_does_not_work_yet_is_refused_and_not_stored(eod: World) -> None:
    with pytest.raises(errors.Unimplemented):
        export = pb.BigQueryConfig(table="project.dataset.table")
        eod.create_subscription(OTHER, exactly_once=False, bigquery_config=export)

    assert subscriptions(eod) == [SUBSCRIPTION]


# -- the journal -------------------------------------------------------------------------------------------


def test_every_change_of_a_resource_is_in_the_journal_with_all_of_it(world: World) -> None:
    world.create_subscription()
    world.switch(exactly_once=False)
    detach(world)
    delete_subscription(world)
    delete_topic(world)
    world.turn()

    details = [json.loads(text) for _, text in sorted(world.store.journal_details.items())]
    assert [one["change"] for one in details] == [
        "created",
        "created",
        "updated",
        "detached",
        "deleted",
        "deleted",
    ]
    assert [one["topic"]["name"] for one in (details[0], details[5])] == [TOPIC, TOPIC]
    assert [one["subscription"]["name"] for one in details[1:5]] == [SUBSCRIPTION] * 4
    assert details[1]["subscription"]["topic"] == TOPIC
    assert len(details) == len(world.events(Kind.CONFIG))


def test_without_a_journal_nothing_is_collected() -> None:
    world = World(journal=False)
    world.create_topic()
    world.create_subscription()
    world.publish(b"x")
    (lease,) = world.pull()
    world.acknowledge([lease.ack_id, "bad"])
    effects = world.broker.take_effects()

    assert (effects.events, effects.details) == ([], [])
    assert world.owed() == []
