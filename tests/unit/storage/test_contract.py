"""What every Store does: the file, the one in memory, and the fake that other tests use."""

from __future__ import annotations

from pubsubd.broker.entry import Entry, chunks, unpack_chunk
from pubsubd.storage.store import Commit, Loaded
from tests.unit.storage.conftest import Any_Store

TOPIC, OTHER = 1, 2
MANY = 1 << 30


def rows(topic_id: int, *groups: list[int]) -> list[tuple[int, int, bytes]]:
    """One row for each group of message ids."""
    return [
        row
        for group in groups
        for row in chunks(topic_id, [Entry(message_id, 0, 0, b"." * 10) for message_id in group])
    ]


def ids(found: list[bytes]) -> list[list[int]]:
    """The message ids in each row."""
    return [[entry.message_id for entry in unpack_chunk(data)] for data in found]


def topic(topic_id: int, deleted: bool = False) -> tuple[int, str, bool, bytes]:
    return (topic_id, f"projects/p/topics/t{topic_id}", deleted, b"resource %d" % topic_id)


async def stored(store: Any_Store, topic_id: int = TOPIC) -> list[list[int]]:
    return ids(await store.read_range(topic_id, 0, MANY, MANY))


# -- state -------------------------------------------------------------------------------------------------


async def test_an_empty_store_has_nothing(store: Any_Store) -> None:
    assert await store.load() == Loaded([], [], [], [], [])
    assert await stored(store) == []
    assert not store.has_rows_to_trim
    assert (store.boot, store.was_clean) == (1, True)
    assert 16 <= len(store.secret) <= 64


async def test_what_was_committed_is_loaded(store: Any_Store) -> None:
    await store.commit(
        Commit(
            oplog=b"one",
            topics=[topic(2), topic(1, deleted=True)],
            subscriptions=[(7, 1, "projects/p/subscriptions/s", 5, b"sub")],
            endings=[(7, 3, 1, 1, 1000), (7, 2, 2, 2, 1000)],
            journal=(1, 2, 1, b"x" * 98 * 2),
            journal_details=[(1, '{"a":1}')],
        )
    )
    await store.commit(Commit(oplog=b"two", journal=(3, 1, 1, b"y" * 98)))
    loaded = await store.load()

    assert loaded.topics == [topic(1, deleted=True), topic(2)]
    assert loaded.subscriptions == [(7, 1, "projects/p/subscriptions/s", 5, b"sub")]
    assert loaded.endings == [(7, 3, 1, 1, 1000), (7, 2, 2, 2, 1000)], "oldest first"
    assert loaded.oplog == [b"one", b"two"]
    assert [(first_seq, n) for first_seq, n, _ in loaded.journal_rows] == [(1, 2), (3, 1)]


async def test_a_row_is_replaced_by_its_number_and_goes_by_it(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", topics=[topic(1), topic(2)], subscriptions=[(7, 1, "s", 0, b"a")]))
    await store.commit(
        Commit(
            oplog=b"",
            topics=[topic(1, deleted=True)],
            subscriptions=[(7, 1, "s", 0, b"b"), (8, 1, "s", 4, b"c")],
        )
    )
    loaded = await store.load()
    assert loaded.topics == [topic(1, deleted=True), topic(2)]
    assert loaded.subscriptions == [(7, 1, "s", 0, b"b"), (8, 1, "s", 4, b"c")]

    await store.commit(Commit(oplog=b"", topics_gone=[2, 9], subscriptions_gone=[7]))
    loaded = await store.load()
    assert loaded.topics == [topic(1, deleted=True)]
    assert loaded.subscriptions == [(8, 1, "s", 4, b"c")]


async def test_two_topics_may_have_one_name(store: Any_Store) -> None:
    """One of them deleted, and kept for its subscriptions."""
    await store.commit(Commit(oplog=b"", topics=[(1, "t", True, b"old"), (2, "t", False, b"new")]))

    assert (await store.load()).topics == [(1, "t", True, b"old"), (2, "t", False, b"new")]


async def test_a_checkpoint_replaces_the_operation_log(store: Any_Store) -> None:
    for data in (b"one", b"two"):
        await store.commit(Commit(oplog=data))
    await store.commit(Commit(oplog=b"all", oplog_is_checkpoint=True))
    await store.commit(Commit(oplog=b"more"))

    assert (await store.load()).oplog == [b"all", b"more"]


async def test_old_endings_go_when_new_ones_come(store: Any_Store) -> None:
    def ending(message_id: int, at_us: int) -> tuple[int, int, int, int, int]:
        return (7, message_id, 1, 1, at_us)

    await store.commit(Commit(oplog=b"", endings=[ending(1, 100), ending(2, 200)], endings_kept_from_us=0))
    await store.commit(Commit(oplog=b"", endings=[ending(3, 300)], endings_kept_from_us=200))

    assert (await store.load()).endings == [ending(2, 200), ending(3, 300)], "what is as old as that is kept"


async def test_the_journal_is_dropped_from_its_old_end(store: Any_Store) -> None:
    for first_seq in (1, 3, 5):
        details = [(first_seq, "{}"), (first_seq + 1, '{"b":2}')]
        await store.commit(Commit(oplog=b"", journal=(first_seq, 2, 1, b"."), journal_details=details))
    await store.commit(Commit(oplog=b"", journal=(7, 1, 1, b"."), journal_drop_through=4))

    found, details_left = await store.read_journal()
    assert found == [(5, 2, 1, b"."), (7, 1, 1, b".")]
    assert details_left == {5: "{}", 6: '{"b":2}'}


# -- messages ----------------------------------------------------------------------------------------------


async def test_a_range_is_read_in_order_and_by_topic(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1, 2]) + rows(OTHER, [3]) + rows(TOPIC, [4, 6])))
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [7])))

    assert await stored(store) == [[1, 2], [4, 6], [7]]
    assert await stored(store, OTHER) == [[3]]
    assert await stored(store, 99) == []


async def test_a_range_begins_with_the_row_that_holds_what_follows(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1, 2], [4, 6], [7], [9])))

    async def between(after_id: int, through_id: int) -> list[list[int]]:
        return ids(await store.read_range(TOPIC, after_id, through_id, MANY))

    assert await between(2, 9) == [[4, 6], [7], [9]]
    assert await between(4, 9) == [[4, 6], [7], [9]], "6 follows 4"
    assert await between(6, 7) == [[7]]
    assert await between(0, 5) == [[1, 2], [4, 6]], "the row with 6 may hold what comes before"
    assert await between(9, 20) == []


async def test_a_range_is_cut_when_it_is_large(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1], [2], [3], [4])))
    (size,) = {len(data) for data in await store.read_range(TOPIC, 0, MANY, MANY)}

    for bytes_max, count in ((1, 1), (size, 1), (size + 1, 2), (2 * size, 2), (4 * size, 4)):
        assert len(await store.read_range(TOPIC, 0, MANY, bytes_max)) == count


async def test_single_messages_are_read_by_row_and_each_row_once(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1, 2, 3], [5, 6], [8]) + rows(OTHER, [7])))

    async def of(*message_ids: int) -> list[list[int]]:
        return ids(await store.read_messages(TOPIC, message_ids, MANY))

    assert await of(2) == [[1, 2, 3]]
    assert await of(1, 3, 5) == [[1, 2, 3], [5, 6]]
    assert await of(8) == [[8]]
    assert await of(99) == []
    assert await of() == []


async def test_single_messages_are_cut_when_they_are_large(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1], [2], [3], [4])))

    assert ids(await store.read_messages(TOPIC, [1, 2, 4], 1)) == [[1]], (
        "the first there are, and one at least"
    )
    assert ids(await store.read_messages(TOPIC, [2, 4], MANY)) == [[2], [4]]


# -- rows that nobody needs --------------------------------------------------------------------------------


async def test_what_nobody_needs_goes_in_small_steps(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 51)])))
    await store.commit(Commit(oplog=b"", trims={TOPIC: 40}))
    assert len(await stored(store)) == 34, "sixteen with each commit"
    assert store.has_rows_to_trim

    steps = 0
    while store.has_rows_to_trim:
        await store.commit(Commit(oplog=b""))
        steps += 1
    assert steps == 2
    assert await stored(store) == [[n] for n in range(41, 51)]


async def test_a_row_with_one_needed_message_stays(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1, 2], [3, 4])))
    await store.commit(Commit(oplog=b"", trims={TOPIC: 3}))

    assert await stored(store) == [[3, 4]]
    assert not store.has_rows_to_trim


async def test_topics_are_trimmed_each_by_itself(store: Any_Store) -> None:
    await store.commit(
        Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 31)]) + rows(OTHER, [31], [32]))
    )
    await store.commit(Commit(oplog=b"", trims={TOPIC: 30, OTHER: 31}))
    assert await stored(store, OTHER) == [[32]]
    await store.commit(Commit(oplog=b"", trims={OTHER: 32}))

    assert await stored(store) == await stored(store, OTHER) == []
    assert not store.has_rows_to_trim


async def test_a_later_bound_takes_the_place_of_the_earlier(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 41)])))
    await store.commit(Commit(oplog=b"", trims={TOPIC: 20}))
    await store.commit(Commit(oplog=b"", trims={TOPIC: 25}))
    await store.commit(Commit(oplog=b""))

    assert await stored(store) == [[n] for n in range(26, 41)]


async def test_a_bound_covers_what_its_own_commit_adds(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1]), trims={TOPIC: 1}))

    assert await stored(store) == []
