"""The replay kernel says what the plain loop says, on whatever a journal can hold, however it is cut up."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

np = pytest.importorskip("numpy", reason="needs pubsubd[analytics]: no numpy")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analytics import keys, rules
from analytics.dimensions import Dimensions
from analytics.kernel import Replayed, replay
from analytics.keys import Ints, Shape
from analytics.layout import Kind, Result
from analytics.rules import Rules
from analytics.tables import CODES, SCHEMAS
from tests.analytics.sequences import World, random_moves, world, worlds

BOTH_SIDES_OF_EACH_LIMIT = [
    (keys.MESSAGE_ID_END - 5, 0, 0),  # of the largest message, subscription and epoch: none beyond
    (keys.MESSAGE_ID_END, 0, 0),
    (0, keys.SUB_ID_END - 5, 0),
    (0, keys.SUB_ID_END, 0),
    (2**62, 2**31 - 10, 0),
]


def rules_of(world: World) -> Rules:
    return Rules.of(world.dimensions, world.tolerance_us, world.first_message_id)


def events_of(**columns: Any) -> dict[str, Ints]:
    """Arrays for the columns given, and zeros for the others of the kernel."""
    size = max(np.size(values) for values in columns.values())
    names = (
        "message_id", "sub_id", "epoch", "kind", "result", "generation", "attempt", "seq", "ts_us",
        "deadline_us", "ref_ts_us", "okey",
    )  # fmt: skip  # short items, many to a line
    return {name: np.broadcast_to(np.asarray(columns.get(name, 0), np.int64), size).copy() for name in names}


def config(seq: int, sub_id: int, exactly_once: bool) -> dict[str, Any]:
    resource = {"name": "s", "enable_exactly_once_delivery": exactly_once}
    return {
        "seq": seq, "ts_us": seq, "kind": int(Kind.CONFIG), "topic_id": 1, "sub_id": sub_id, "message_id": 0,
        "result": 0, "client_id": 0, "stream_id": 0, "aux": 0, "ref_ts_us": 0,
        "detail": json.dumps({"change": "created", "subscription": resource}),
    }  # fmt: skip  # short items, many to a line


def seek(seq: int, sub_id: int, target_us: int) -> dict[str, Any]:
    return config(seq, sub_id, True) | {
        "kind": int(Kind.SEEK),
        "aux": target_us,
        "detail": '{"retain_acked": true, "kept_from_us": 0}',
    }


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds)
def test_kernel_and_plain_loop_agree_on_any_sequence_of_events(one: World) -> None:
    assert replay(one.columns, rules_of(one)).rows() == one.expected()


@pytest.mark.parametrize("seed", range(8))
def test_kernel_and_plain_loop_agree_on_long_sequences(seed: int) -> None:
    one = world(random_moves(Random(seed), 1_500), tolerance_us=seed % 3, first_seq=1 + 200 * (seed % 2))
    found = replay(one.columns, rules_of(one)).rows()

    assert found == one.expected()
    assert {CODES[code] for row in found for code in row["v_kind"]} >= {
        "G1_delivered_after_ack",
        "G1_delivered_after_seek",
        "G2_early_redelivery",
        "G2_early_expire",
        "G3_valid_rejected",
        "G3_invalid_accepted",
    }


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds, st.randoms(use_true_random=False), st.integers(1, 4))
def test_order_of_input_and_spread_over_partitions_do_not_matter(
    one: World, random: Random, parts: int
) -> None:
    columns = one.columns
    order = list(range(len(columns["seq"])))
    random.shuffle(order)
    shuffled = {name: values[order] for name, values in columns.items()}
    assert replay(shuffled, rules_of(one)).rows() == replay(columns, rules_of(one)).rows()

    # All events of a message on a subscription are in one part.
    place = (shuffled["message_id"] * 31 + shuffled["sub_id"]) * random.randrange(1, 99) % parts
    spread = [
        row
        for part in range(parts)
        for row in replay({n: v[place == part] for n, v in shuffled.items()}, rules_of(one)).rows()
    ]
    spread.sort(key=lambda row: (row["sub_id"], row["message_id"], row["epoch"]))
    assert spread == replay(columns, rules_of(one)).rows()


@pytest.mark.parametrize(("more_messages", "more_subs", "more_epochs"), BOTH_SIDES_OF_EACH_LIMIT)
def test_ids_on_both_sides_of_the_limits_of_one_key_change_nothing(
    more_messages: int, more_subs: int, more_epochs: int
) -> None:
    """The journal is the same with larger numbers, so the facts are the same with larger numbers."""
    plain = world(random_moves(Random(5), 400))
    assert len(plain.dimensions.subscriptions) == 2
    moved = World(
        [
            row
            | {"message_id": row["message_id"] + (more_messages if row["message_id"] else 0)}
            | {"sub_id": row["sub_id"] + (more_subs if row["sub_id"] else 0)}
            | {"detail": None if row["detail"] is None else _kept_after(row["detail"], more_messages)}
            for row in plain.rows
        ]
    )
    found = replay(moved.columns, rules_of(moved)).rows()

    assert found == moved.expected()
    for row in found:
        row["message_id"] -= more_messages
        row["sub_id"] -= more_subs
    assert found == replay(plain.columns, rules_of(plain)).rows()


def _kept_after(detail: str, more: int) -> str:
    told = json.loads(detail)
    if "kept_after_id" in told:
        told["kept_after_id"] += more
    return json.dumps(told)


@pytest.mark.parametrize("seeks", [254, 255, 256, 700])
def test_more_seeks_than_one_key_holds_change_nothing(seeks: int) -> None:
    """Delivered once after each seek, which brings the message back from its ack."""
    rows = [config(1, 1, True)]
    for number in range(seeks):
        rows.append(seek(100 + 10 * number, 1, 50))
    dimensions = Dimensions.from_rows(rows)
    number = np.arange(seeks + 1)
    deliver = events_of(
        message_id=1, sub_id=1, epoch=number, kind=int(Kind.DELIVER), generation=number + 1, attempt=1,
        seq=92 + 10 * number, ts_us=92 + 10 * number, deadline_us=97 + 10 * number, ref_ts_us=60,
    )  # fmt: skip  # short items, many to a line
    ack = events_of(
        message_id=1, sub_id=1, epoch=number, kind=int(Kind.ACK), generation=number + 1, attempt=1,
        seq=94 + 10 * number, ts_us=94 + 10 * number, ref_ts_us=92 + 10 * number,
    )  # fmt: skip  # short items, many to a line
    columns = {name: np.concatenate([deliver[name], ack[name]]) for name in deliver}
    found = replay(columns, Rules.of(dimensions)).rows()

    assert [row["epoch"] for row in found] == list(range(seeks + 1))
    assert all((row["deliveries"], row["acks"], row["owed"]) == (1, 1, True) for row in found)
    assert sum(row["violations"] for row in found) == 0


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds)
def test_one_key_and_two_keys_give_the_same(one: World) -> None:
    columns = one.replayed
    by_one = replay(keys.pack_arrays(columns, Shape.ONE_KEY), rules_of(one))
    by_two = replay(keys.pack_arrays(columns, Shape.TWO_KEYS), rules_of(one))

    assert by_one.rows() == by_two.rows() == one.expected()


@pytest.mark.parametrize(
    ("largest", "shape"),
    [
        ((2**41 - 1, 2**14 - 1, 255), Shape.ONE_KEY),
        ((2**41, 1, 0), Shape.TWO_KEYS),
        ((1, 2**14, 0), Shape.TWO_KEYS),
        ((1, 1, 256), Shape.TWO_KEYS),
    ],
)
def test_one_key_is_taken_exactly_up_to_its_limits(largest: tuple[int, int, int], shape: Shape) -> None:
    assert keys.shape_of(*largest) is shape


@pytest.mark.parametrize("shape", Shape)
def test_what_is_packed_comes_out_again(shape: Shape) -> None:
    columns = events_of(
        message_id=[1, 2**41 - 1], sub_id=[2**14 - 1, 1], epoch=[255, 0], kind=[15, 2], result=[4, 0],
        generation=[2**31 - 1, 1], attempt=[1, 2**25 - 1],
    )  # fmt: skip  # short items, many to a line
    packed = keys.pack_arrays(columns, shape)
    message_id, sub_id = keys.message_and_sub_ids(keys.message_keys(packed))
    kind, result, generation, attempt = keys.unpack_meta(packed["meta"])
    found = [message_id, sub_id, keys.pop_epochs(dict(packed)), kind, result, generation, attempt]

    names = ["message_id", "sub_id", "epoch", "kind", "result", "generation", "attempt"]
    assert [one.tolist() for one in found] == [columns[name].tolist() for name in names]
    assert min(packed["meta"]) >= 0 and min(packed["key"]) >= 0


def test_empty_partition_has_no_facts() -> None:
    for shape in Shape:
        nothing = keys.pack_arrays({name: values[:0] for name, values in events_of(seq=[1]).items()}, shape)
        found = replay(nothing, Rules.of(Dimensions()))
        assert len(found) == 0 and found.rows() == []
        assert set(found.columns) | {"v_kind", "v_seq"} == _names_of_facts()


def _names_of_facts() -> set[str]:
    return {column.split()[0] for column in SCHEMAS["facts"].split(", ")}


def test_facts_have_the_columns_of_the_table() -> None:
    one = world(random_moves(Random(1), 50))
    (row, *_) = replay(one.columns, rules_of(one)).rows()
    assert set(row) == _names_of_facts()


def test_message_with_a_hundred_thousand_events() -> None:
    """Delivered, extended and nacked again and again; one delivery comes too early, and one after the ack."""
    rounds = 33_333
    number = np.arange(rounds)
    each = 1_000 * number
    parts = [
        events_of(kind=int(Kind.DELIVER), generation=number + 1, seq=3 * number + 1, ts_us=1_000 + each,
                  deadline_us=1_500 + each, ref_ts_us=900),
        events_of(kind=int(Kind.EXTEND), generation=number + 1, seq=3 * number + 2, ts_us=1_100 + each,
                  deadline_us=2_100 + each),
        events_of(kind=int(Kind.NACK), generation=number + 1, seq=3 * number + 3, ts_us=1_200 + each),
    ]  # fmt: skip  # short items, many to a line
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    columns["message_id"][:] = columns["sub_id"][:] = 1
    # In round 10 the nack is refused, wrongly, so that the delivery of round 11 comes inside its lease.
    columns["result"][2 * rounds + 10] = int(Result.PERMANENT)
    # The last nack is an ack, and one more delivery follows it.
    columns["kind"][-1] = int(Kind.ACK)
    extra = events_of(
        kind=int(Kind.DELIVER), message_id=1, sub_id=1, generation=rounds + 1, seq=3 * rounds + 1,
        ts_us=10**9, deadline_us=10**9 + 1, ref_ts_us=900,
    )  # fmt: skip  # short items, many to a line
    columns = {name: np.concatenate([values, extra[name]]) for name, values in columns.items()}
    dimensions = Dimensions.from_rows([config(0, 1, True)])

    (row,) = replay(columns, Rules.of(dimensions)).rows()

    assert (row["deliveries"], row["extends"], row["nacks"], row["acks"]) == (
        rounds + 1,
        rounds,
        rounds - 2,
        1,
    )
    assert row["v_seq"] == [33, 34, 3 * rounds + 1]
    assert [CODES[code] for code in row["v_kind"]] == [
        "G3_valid_rejected",
        "G2_early_redelivery",
        "G1_delivered_after_ack",
    ]


def test_seqs_too_far_apart_for_one_number_are_sorted_all_the_same() -> None:
    one = world(random_moves(Random(3), 300))
    columns = one.columns
    far = columns | {"seq": columns["seq"] + np.where(columns["seq"] > 150, 2**61, 0)}
    no_seeks = Rules.of(Dimensions())

    def without_seq(found: Replayed) -> list[dict[str, Any]]:
        return [{k: v for k, v in row.items() if k not in ("first_seq", "v_seq")} for row in found.rows()]

    assert without_seq(replay(far, no_seeks)) == without_seq(replay(columns, no_seeks))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.data())
def test_searches_find_what_a_walk_finds(values: list[int], data: st.DataObject) -> None:
    low = data.draw(st.integers(0, len(values)))
    high = data.draw(st.integers(low, len(values)))
    than = data.draw(st.integers(-1, 10))

    def walk(over: list[int]) -> int:
        return next((at for at in range(low, high) if over[at] > than), high)

    def search(find: Any, over: list[int]) -> int:
        return int(find(np.array(over, np.int64), *(np.array([one]) for one in (low, high, than)))[0])

    assert search(rules.next_above, values) == walk(values)
    assert search(rules.first_above, sorted(values)) == walk(sorted(values))
