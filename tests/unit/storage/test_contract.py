"""What every Store does: the file, the one in memory, and the fakes of other tests and the simulator."""

from __future__ import annotations

from pubsubd.broker.entry import Chunk, Entry, chunks, unpack_chunk
from pubsubd.storage.store import Commit, Loaded
from tests.unit.storage.conftest import Any_Store

TOPIC, OTHER = 1, 2
MANY = 1 << 30
EVER = 2**62  # no bound of time


def rows(topic_id: int, *groups: list[int]) -> list[Chunk]:
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
    assert await store.load() == Loaded([], [], [], [], [], [], [])
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
            snapshots=[
                (9, 1, "projects/p/snapshots/b", b"b", b"state"),
                (8, 2, "projects/p/snapshots/a", b"a", b""),
            ],
            documents=[("policy", "b", b"1"), ("kind", "c", b"2"), ("policy", "a", b"3")],
            endings=[(7, 3, 1, 1, 1000), (7, 2, 2, 2, 1000)],
            journal=(1, 2, 1, b"x" * 98 * 2),
            journal_details=[(1, '{"a":1}')],
        )
    )
    await store.commit(Commit(oplog=b"two", journal=(3, 1, 1, b"y" * 98)))
    loaded = await store.load()

    assert loaded.topics == [topic(1, deleted=True), topic(2)]
    assert loaded.subscriptions == [(7, 1, "projects/p/subscriptions/s", 5, b"sub")]
    assert loaded.snapshots == [
        (8, 2, "projects/p/snapshots/a", b"a", b""),
        (9, 1, "projects/p/snapshots/b", b"b", b"state"),
    ]
    assert loaded.documents == [("kind", "c", b"2"), ("policy", "a", b"3"), ("policy", "b", b"1")]
    assert loaded.endings == [(7, 3, 1, 1, 1000), (7, 2, 2, 2, 1000)], "oldest first"
    assert loaded.oplog == [b"one", b"two"]
    assert [(first_seq, n) for first_seq, n, _ in loaded.journal_rows] == [(1, 2), (3, 1)]


async def test_a_row_is_replaced_by_its_number_and_goes_by_it(store: Any_Store) -> None:
    await store.commit(
        Commit(
            oplog=b"",
            topics=[topic(1), topic(2)],
            subscriptions=[(7, 1, "s", 0, b"a")],
            snapshots=[(4, 1, "a", b"a", b"1")],
        )
    )
    await store.commit(
        Commit(
            oplog=b"",
            topics=[topic(1, deleted=True)],
            subscriptions=[(7, 1, "s", 0, b"b"), (8, 1, "s", 4, b"c")],
            snapshots=[(4, 1, "a", b"b", b"1"), (5, 1, "b", b"c", b"2")],
        )
    )
    loaded = await store.load()
    assert loaded.topics == [topic(1, deleted=True), topic(2)]
    assert loaded.subscriptions == [(7, 1, "s", 0, b"b"), (8, 1, "s", 4, b"c")]
    assert loaded.snapshots == [(4, 1, "a", b"b", b"1"), (5, 1, "b", b"c", b"2")]

    await store.commit(Commit(oplog=b"", topics_gone=[2, 9], subscriptions_gone=[7], snapshots_gone=[4, 6]))
    loaded = await store.load()
    assert loaded.topics == [topic(1, deleted=True)]
    assert loaded.subscriptions == [(8, 1, "s", 4, b"c")]
    assert loaded.snapshots == [(5, 1, "b", b"c", b"2")]


async def test_a_document_is_replaced_by_kind_and_name_and_goes_by_them(store: Any_Store) -> None:
    await store.commit(
        Commit(oplog=b"", documents=[("k", "a", b"1"), ("k", "b", b"2"), ("other", "a", b"3")])
    )
    await store.commit(
        Commit(oplog=b"", documents=[("k", "a", b"4")], documents_gone=[("k", "b"), ("k", "never")])
    )

    assert (await store.load()).documents == [("k", "a", b"4"), ("other", "a", b"3")]


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


# -- messages by time --------------------------------------------------------------------------------------


def timed(topic_id: int, *groups: dict[int, int]) -> list[Chunk]:
    """One row for each group of message ids with their publish times."""
    return [
        row
        for group in groups
        for row in chunks(
            topic_id, [Entry(message_id, at_us, 0, b".") for message_id, at_us in group.items()]
        )
    ]


async def found(store: Any_Store, after_id: int, before_us: int) -> tuple[int, list[int]]:
    """Of the row that follows the message ids."""
    before_id, data = await store.find_chunk(TOPIC, after_id, before_us)
    return before_id, [] if data is None else ids([data])[0]


async def test_a_point_in_time_lies_between_two_rows(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=timed(OTHER, {1: 1}, {50: 900})))
    await store.commit(Commit(oplog=b"", chunks=timed(TOPIC, {2: 100, 5: 200}, {7: 200, 8: 300}, {20: 400})))

    assert await found(store, 0, 100) == (0, [2, 5])
    assert await found(store, 0, 200) == (0, [2, 5]), "the row that ends at that time"
    assert await found(store, 0, 201) == (5, [7, 8])
    assert await found(store, 0, 300) == (5, [7, 8])
    assert await found(store, 0, 301) == (8, [20])
    assert await found(store, 0, 401) == (20, [])
    assert await found(store, 0, EVER) == (20, [])
    assert await found(store, 0, -EVER) == (0, [2, 5])


async def test_a_point_in_time_is_looked_for_after_a_message(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=timed(TOPIC, {2: 100, 5: 200}, {7: 200, 8: 300}, {20: 400})))

    assert await found(store, 4, 300) == (5, [7, 8]), "5 follows 4"
    assert await found(store, 5, 300) == (0, [7, 8])
    assert await found(store, 6, 0) == (0, [7, 8])
    assert await found(store, 7, 301) == (8, [20])
    assert await found(store, 8, 401) == (20, [])
    assert await found(store, 20, 0) == await found(store, 99, 0) == (0, [])


async def test_without_rows_no_point_in_time_is_found(store: Any_Store) -> None:
    assert await found(store, 0, 0) == (0, [])
    await store.commit(Commit(oplog=b"", chunks=timed(OTHER, {1: 100})))
    assert await found(store, 0, 0) == (0, [])


async def test_of_rows_of_one_time_the_first_follows_it(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=timed(TOPIC, *({n: 100 * (n // 10)} for n in range(1, 60)))))

    for after_id in range(61):
        for before_us in range(0, 700, 50):
            expected = [n for n in range(after_id + 1, 60) if 100 * (n // 10) < before_us]
            following = max([after_id, *expected]) + 1
            assert await found(store, after_id, before_us) == (
                max(expected, default=0),
                [following] if following < 60 else [],
            )


# -- rows that nobody needs --------------------------------------------------------------------------------


async def test_what_nobody_needs_goes_in_small_steps(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 51)])))
    await store.commit(Commit(oplog=b"", trims={TOPIC: (40, EVER)}))
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
    await store.commit(Commit(oplog=b"", trims={TOPIC: (3, EVER)}))

    assert await stored(store) == [[3, 4]]
    assert not store.has_rows_to_trim


async def test_topics_are_trimmed_each_by_itself(store: Any_Store) -> None:
    await store.commit(
        Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 31)]) + rows(OTHER, [31], [32]))
    )
    await store.commit(Commit(oplog=b"", trims={TOPIC: (30, EVER), OTHER: (31, EVER)}))
    assert await stored(store, OTHER) == [[32]]
    await store.commit(Commit(oplog=b"", trims={OTHER: (32, EVER)}))

    assert await stored(store) == await stored(store, OTHER) == []
    assert not store.has_rows_to_trim


async def test_a_later_bound_takes_the_place_of_the_earlier(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, *[[n] for n in range(1, 41)])))
    await store.commit(Commit(oplog=b"", trims={TOPIC: (20, EVER)}))
    await store.commit(Commit(oplog=b"", trims={TOPIC: (25, EVER)}))
    await store.commit(Commit(oplog=b""))

    assert await stored(store) == [[n] for n in range(26, 41)]


async def test_a_bound_covers_what_its_own_commit_adds(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=rows(TOPIC, [1]), trims={TOPIC: (1, EVER)}))

    assert await stored(store) == []


async def test_a_row_that_is_young_enough_stays(store: Any_Store) -> None:
    await store.commit(Commit(oplog=b"", chunks=timed(TOPIC, {1: 100}, {2: 200, 3: 300}, {4: 400})))

    assert await store.commit(Commit(oplog=b"", trims={TOPIC: (4, 300)})) == {TOPIC: 300}
    assert await stored(store) == [[2, 3], [4]]
    assert await store.commit(Commit(oplog=b"", trims={TOPIC: (3, 401)})) == {TOPIC: 400}
    assert await stored(store) == [[4]]
    assert await store.commit(Commit(oplog=b"", trims={TOPIC: (4, 401)})) == {TOPIC: None}
    assert await stored(store) == []


async def test_who_trims_is_told_when_it_ends_and_what_is_oldest_then(store: Any_Store) -> None:
    await store.commit(
        Commit(oplog=b"", chunks=timed(TOPIC, *({n: 10 * n} for n in range(1, 41))) + timed(OTHER, {41: 7}))
    )

    assert await store.commit(Commit(oplog=b"")) == {}
    told = [await store.commit(Commit(oplog=b"", trims={TOPIC: (33, EVER), OTHER: (0, EVER)}))]
    while store.has_rows_to_trim:
        told.append(await store.commit(Commit(oplog=b"")))

    assert told == [{OTHER: 7}, {}, {TOPIC: 340}]
    assert await store.commit(Commit(oplog=b"", trims={99: (5, EVER)})) == {99: None}


async def test_trimming_ends_with_the_last_row_that_may_go(store: Any_Store) -> None:
    """And not with a commit more that finds nothing."""
    await store.commit(Commit(oplog=b"", chunks=timed(TOPIC, *({n: 10 * n} for n in range(1, 18)))))

    assert await store.commit(Commit(oplog=b"", trims={TOPIC: (16, EVER)})) == {TOPIC: 170}
    assert not store.has_rows_to_trim


async def test_what_a_commit_adds_counts_among_what_is_left(store: Any_Store) -> None:
    commit = Commit(oplog=b"", chunks=timed(TOPIC, {1: 100}, {2: 200}), trims={TOPIC: (1, EVER)})

    assert await store.commit(commit) == {TOPIC: 200}
