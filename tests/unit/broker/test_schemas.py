"""Schemas in the broker: what topics refer to, what is stamped on messages, what survives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pubsubd.model import errors
from pubsubd.model.events import Kind
from pubsubd.wire import pb
from tests.unit.broker.world import TOPIC, World, restored
from tests.unit.schema.support import avro, field, proto, record

PARENT, SCHEMA = "projects/p", "projects/p/schemas/orders"
A = field("a", "string")
GOOD = b'{"a":"x"}'
#: Data that only the first, the second, the third revision takes.
REVISIONS = [record(A, field(f"r{n}", "int", default=0)) for n in range(3)]
DATAS = [b'{"a":"x","r%d":1}' % n for n in range(3)]


class Schemas:
    """Commands as clients give them, on the broker that a world has at the time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._uniques = 0

    def unique(self) -> str:
        self._uniques += 1
        return f"unique-{self._uniques}"

    def create(self, definition: Any = None, name: str = SCHEMA) -> pb.Schema:
        prepared = avro(record(A) if definition is None else definition)
        request = pb.CreateSchemaRequest(
            parent=PARENT, schema_id=name.rpartition("/")[2], schema=prepared.schema
        )
        return self.world.broker.create_schema(request, prepared, self.unique(), self.world.now_us)

    def commit(self, definition: Any, name: str = SCHEMA, compared: Any = ()) -> pb.Schema:
        prepared = avro(definition)
        request = pb.CommitSchemaRequest(name=name, schema=prepared.schema)
        broker = self.world.broker
        return broker.commit_schema(request, prepared, compared, self.unique(), self.world.now_us)

    def rollback(self, revision_id: str) -> pb.Schema:
        request = pb.RollbackSchemaRequest(name=SCHEMA, revision_id=revision_id)
        return self.world.broker.rollback_schema(request, self.unique(), self.world.now_us)

    def delete_revision(self, revision_id: str) -> pb.Schema:
        request = pb.DeleteSchemaRevisionRequest(name=f"{SCHEMA}@{revision_id}")
        return self.world.broker.delete_schema_revision(request, self.world.now_us)

    def delete(self) -> None:
        self.world.broker.delete_schema(pb.DeleteSchemaRequest(name=SCHEMA), self.world.now_us)

    def revision_ids(self) -> list[str]:
        """Newest first."""
        listed = self.world.broker.list_schema_revisions(pb.ListSchemaRevisionsRequest(name=SCHEMA))
        return [one.revision_id for one in listed.schemas]

    def three(self) -> list[str]:
        """The ids of three revisions, oldest first."""
        self.create(REVISIONS[0])
        for definition in REVISIONS[1:]:
            self.commit(definition)
        return self.revision_ids()[::-1]

    def topic(self, name: str = TOPIC, **range_: str) -> pb.Topic:
        settings = pb.SchemaSettings(schema=SCHEMA, encoding=pb.JSON, **range_)
        return self.world.create_topic(name, schema_settings=settings)

    def set_range(self, **range_: str) -> None:
        settings = pb.SchemaSettings(schema=SCHEMA, encoding=pb.JSON, **range_)
        paths = [f"schema_settings.{bound}" for bound in ("first_revision_id", "last_revision_id")]
        request = pb.UpdateTopicRequest(
            topic=pb.Topic(name=TOPIC, schema_settings=settings), update_mask=pb.FieldMask(paths=paths)
        )
        self.world.broker.update_topic(request, self.world.now_us)

    def accepted_by(self, data: bytes) -> str:
        """The id of the revision that a published message was accepted by."""
        self.world.publish(data)
        consumer = self.world.open_pull()
        self.world.settle()
        self.world.broker.close_pull(consumer)
        (message,) = consumer.shell.messages()
        self.world.acknowledge(consumer.shell.ack_ids)
        return str(message.attributes["googclient_schemarevisionid"])


@pytest.fixture
def schemas() -> Schemas:
    return Schemas(World())


def refused(kind: type[errors.PubsubError], call: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments)
    return caught.value.message


def all_of(world: World) -> list[pb.Schema]:
    """Every revision, whole, and every topic."""
    broker = world.broker
    found: list[Any] = []
    for schema in broker.list_schemas(pb.ListSchemasRequest(parent=PARENT)).schemas:
        request = pb.ListSchemaRevisionsRequest(name=schema.name, view=pb.FULL)
        found += broker.list_schema_revisions(request).schemas
    return found + list(broker.list_topics(pb.ListTopicsRequest(project=PARENT)).topics)


def test_schemas_survive_a_restart_with_their_order_and_what_topics_name(schemas: Schemas) -> None:
    world = schemas.world
    first, second, third = schemas.three()
    schemas.create(name="projects/p/schemas/other")
    schemas.topic(first_revision_id=second)
    world.create_subscription()
    schemas.delete_revision(second)
    world.turn()
    before = all_of(world)

    world.crash()

    assert all_of(world) == before
    assert schemas.revision_ids() == [third, first]
    # The bound that was deleted is still behind the first revision.
    refused(errors.Unfit, world.publish, b'{"a":"x","r0":1}')
    assert schemas.accepted_by(DATAS[2]) == third
    fourth = schemas.commit(REVISIONS[2]).revision_id
    assert schemas.revision_ids() == [fourth, third, first]


def test_what_was_decided_in_a_failed_commit_did_not_happen(schemas: Schemas) -> None:
    world = schemas.world
    first, _, third = schemas.three()
    schemas.topic()
    world.create_subscription()
    world.turn()
    before = all_of(world)

    for change in (
        lambda: schemas.commit(REVISIONS[2]),
        lambda: schemas.rollback(first),
        lambda: schemas.delete_revision(third),
        lambda: schemas.create(name="projects/p/schemas/other"),
        schemas.delete,
        lambda: schemas.set_range(last_revision_id=first),
    ):
        change()
        assert all_of(world) != before
        world.begin()
        world.fail()
        assert all_of(world) == before
        assert schemas.accepted_by(DATAS[2]) == third


def test_what_was_written_all_the_same_did_happen(schemas: Schemas) -> None:
    schemas.three()
    schemas.topic()
    schemas.world.turn()
    schemas.delete()
    after = all_of(schemas.world)
    schemas.world.begin()
    schemas.world.fail(written=True)

    assert all_of(schemas.world) == after
    listed = restored(schemas.world.store).list_schemas(pb.ListSchemasRequest(parent=PARENT))
    assert list(listed.schemas) == []


def test_a_schema_with_a_compiled_text_is_not_compiled_again_after_a_restart(schemas: Schemas) -> None:
    world = schemas.world
    prepared = proto('syntax = "proto3"; message Rec { string a = 1; }')
    request = pb.CreateSchemaRequest(parent=PARENT, schema_id="orders", schema=prepared.schema)
    world.broker.create_schema(request, prepared, "unique", world.now_us)
    schemas.topic()
    world.create_subscription()
    world.turn()
    world.crash()

    world.publish(GOOD)
    refused(errors.Unfit, world.publish, b'{"b":1}')


def test_schemas_that_are_cleared_are_gone_with_the_commit(schemas: Schemas) -> None:
    schemas.create()
    schemas.create(name="projects/p/schemas/other")
    schemas.world.turn()
    schemas.world.broker.schemas.clear()

    assert schemas.world.broker.schemas.take_changed() == {SCHEMA: None, "projects/p/schemas/other": None}
    assert all_of(schemas.world) == []


def test_a_refused_request_changes_nothing(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create(record(A))
    schemas.topic()
    world.create_subscription()
    before = all_of(world)
    world.turn()

    refused(errors.AlreadyExists, schemas.create)
    refused(errors.Unfit, schemas.commit, "int")
    refused(errors.Unfit, schemas.delete_revision, schemas.revision_ids()[0])
    refused(errors.NotFound, schemas.rollback, "deadbeef")
    refused(errors.NotFound, schemas.commit, record(A), "projects/p/schemas/none")
    refused(errors.NotFound, lambda: schemas.set_range(last_revision_id="deadbeef"))
    assert all_of(world) == before


def test_a_bad_message_refuses_its_request_and_nothing_of_it_is_stored(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create()
    schemas.topic()
    world.create_subscription()

    with pytest.raises(errors.Unfit) as caught:
        world.publish(GOOD, b"{}")

    info = caught.value.info
    assert info is not None
    assert (info.reason, info.domain) == ("INVALID_JSON_AVRO_MESSAGE", "pubsub.googleapis.com")
    assert info.metadata["message"] == "Message failed schema validation"
    (revision_id,) = schemas.revision_ids()
    for part in (SCHEMA, f"revision_id={revision_id}", "Field was not found in JSON object: a"):
        assert part in info.metadata["revisionInfo"]
    assert world.pull() == []
    assert world.broker.message_id == 0


def test_messages_are_accepted_by_the_newest_revision_that_takes_them(schemas: Schemas) -> None:
    first, second, third = schemas.three()
    schemas.topic()
    schemas.world.create_subscription()

    assert schemas.accepted_by(DATAS[0]) == first
    assert schemas.accepted_by(DATAS[1]) == second
    assert schemas.accepted_by(DATAS[2]) == third
    assert schemas.accepted_by(b'{"a":"x","r0":0,"r1":0,"r2":0}') == third


def test_a_check_made_before_counts_as_long_as_nothing_changed(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create(REVISIONS[0])
    schemas.topic()
    world.create_subscription()
    request = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=DATAS[0])])
    held = world.broker.held_against(request, 100)
    assert held is not None
    checked = held.stamps(request.messages)

    bad = pb.PublishRequest(topic=TOPIC, messages=[pb.PubsubMessage(data=b"{}")])
    world.broker.publish(bad, 100, world.caller(), world.now_us, checked)  # it was checked, we said
    schemas.commit(REVISIONS[1])
    with pytest.raises(errors.Unfit):
        world.broker.publish(bad, 100, world.caller(), world.now_us, checked)
    world.broker.publish(request, 100, world.caller(), world.now_us, checked)


def test_a_range_leaves_out_what_is_older_and_newer(schemas: Schemas) -> None:
    first, second, third = schemas.three()
    schemas.topic(first_revision_id=second, last_revision_id=second)
    world = schemas.world
    world.create_subscription()

    assert schemas.accepted_by(DATAS[1]) == second
    refused(errors.Unfit, world.publish, DATAS[0])
    refused(errors.Unfit, world.publish, DATAS[2])
    schemas.set_range(first_revision_id=second)
    assert schemas.accepted_by(DATAS[2]) == third
    refused(errors.Unfit, world.publish, DATAS[0])
    schemas.set_range(last_revision_id=first)
    assert schemas.accepted_by(DATAS[0]) == first
    refused(
        errors.InvalidArgument, lambda: schemas.set_range(first_revision_id=third, last_revision_id=first)
    )
    refused(errors.NotFound, lambda: schemas.set_range(first_revision_id="deadbeef"))


def test_a_new_revision_is_used_without_a_change_of_the_topic(schemas: Schemas) -> None:
    schemas.create(REVISIONS[0])
    schemas.topic()
    schemas.world.create_subscription()
    refused(errors.Unfit, schemas.world.publish, DATAS[1])

    made = schemas.commit(REVISIONS[1])

    assert schemas.accepted_by(DATAS[1]) == made.revision_id


def test_a_bound_that_is_deleted_keeps_its_place(schemas: Schemas) -> None:
    first, second, third = schemas.three()
    world = schemas.world
    schemas.topic(first_revision_id=second)
    world.create_subscription()
    schemas.delete_revision(second)

    refused(errors.Unfit, world.publish, DATAS[0])
    assert schemas.accepted_by(DATAS[2]) == third
    schemas.set_range(first_revision_id=second, last_revision_id=third)
    # Given up, it is no revision any more.
    schemas.set_range(first_revision_id=third)
    refused(errors.NotFound, lambda: schemas.set_range(first_revision_id=second))
    assert first in schemas.revision_ids()


def test_a_range_without_revisions_accepts_nothing(schemas: Schemas) -> None:
    _, second, _ = schemas.three()
    schemas.topic(first_revision_id=second, last_revision_id=second)
    schemas.delete_revision(second)

    refused(errors.FailedPrecondition, schemas.world.publish, GOOD)


def test_a_topic_forgets_a_deleted_schema_also_when_there_is_another_of_its_name(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create()
    schemas.topic()
    schemas.delete()
    schemas.create()
    world.turn()
    world.crash()

    topic = world.broker.get_topic(pb.GetTopicRequest(topic=TOPIC))
    assert topic.schema_settings.schema == "_deleted-schema_"
    assert topic.schema_settings.encoding == pb.JSON
    assert "deleted" in refused(errors.NotFound, world.publish, GOOD)
    settings = pb.SchemaSettings(schema=SCHEMA, encoding=pb.JSON)
    request = pb.UpdateTopicRequest(
        topic=pb.Topic(name=TOPIC, schema_settings=settings),
        update_mask=pb.FieldMask(paths=["schema_settings"]),
    )
    world.broker.update_topic(request, world.now_us)
    world.publish(GOOD)


def test_filters_see_the_attributes_of_the_schema(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create()
    schemas.topic()
    world.create_subscription(filter='attributes.googclient_schemaencoding = "JSON"')
    world.create_subscription(
        "projects/p/subscriptions/others", filter="NOT attributes:googclient_schemaname"
    )
    world.publish(GOOD, attributes={"googclient_schemaencoding": "mine"})

    assert len(world.pull()) == 1
    assert world.pull("projects/p/subscriptions/others") == []


def test_the_journal_hashes_what_was_sent(schemas: Schemas) -> None:
    world = schemas.world
    schemas.create()
    schemas.topic()
    world.create_topic("projects/p/topics/plain")
    world.publish(GOOD)
    world.publish(GOOD, topic="projects/p/topics/plain")
    effects = world.begin()
    world.end()

    hashes = [event[-2] for event in effects.events if event[1] == Kind.PUBLISH]
    assert len(hashes) == 2 and len(set(hashes)) == 1


def test_revision_ids_are_unlike_each_other_even_if_chance_repeats_itself(schemas: Schemas) -> None:
    schemas.create()
    for _ in range(19):
        schemas._uniques = 0
        schemas.commit(record(A))

    found = schemas.revision_ids()
    assert len(set(found)) == 20
    assert all(len(one) == 8 and set(one) <= set("0123456789abcdef") for one in found)
    refused(errors.ResourceExhausted, schemas.commit, record(A))
    refused(errors.ResourceExhausted, schemas.rollback, found[0])


def test_a_commit_is_compared_with_what_came_while_it_was_prepared(schemas: Schemas) -> None:
    schemas.create(record(A))
    compared = schemas.world.broker.schemas.earlier(SCHEMA)
    schemas.commit(record(A, field("b", "int", default=0)))

    refused(errors.Unfit, schemas.commit, record(A, field("b", "string", default="")), SCHEMA, compared)


def test_pages_of_revisions_go_on_where_they_ended_when_a_revision_is_deleted(schemas: Schemas) -> None:
    first, second, third = schemas.three()
    broker = schemas.world.broker

    def page(token: str = "", size: int = 1) -> pb.ListSchemaRevisionsResponse:
        return broker.list_schema_revisions(
            pb.ListSchemaRevisionsRequest(name=SCHEMA, page_size=size, page_token=token)
        )

    one = page()
    assert [schema.revision_id for schema in one.schemas] == [third]
    schemas.delete_revision(third)
    rest = page(one.next_page_token, 5)
    assert [schema.revision_id for schema in rest.schemas] == [second, first]
    assert rest.next_page_token == ""
