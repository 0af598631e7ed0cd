"""The judge of histories: each rule of leases broken once, and what is open taken both ways."""

from __future__ import annotations

from pubsubd.conform.history import Answer, Handed, Log, Operation, judge

OK, REFUSED, UNKNOWN = Answer

# Deliveries at 0 s end between 10 s, as the publication was at 0 s too, and 11 s.


def first_and(*events: Handed | Operation) -> list[str]:
    """The faults of a message that is published and delivered as `a` at once, and of what follows."""
    log = Log(deadline_seconds=10, published={"m": 0.0}, handed=[Handed("m", "a", 0.0)])
    for event in events:
        if isinstance(event, Handed):
            log.handed.append(event)
        else:
            log.operations.append(event)
    return judge(log)


def handed(ack_id: str, at: float, asked: float = 0.0) -> Handed:
    return Handed("m", ack_id, at, asked)


def op(
    word: str, ack_id: str, sent: float, answer: Answer, *, seconds: int = 0, took: float = 0.0
) -> Operation:
    return Operation(word, "m", ack_id, sent, sent + took, answer, seconds)


def test_message_comes_back_after_its_lease_or_a_nack():
    assert first_and(handed("b", 10.0), handed("c", 20.0)) == []
    assert first_and(op("nack", "a", 1, OK), handed("b", 1.0), handed("c", 11.0)) == []
    assert first_and(op("extend", "a", 1, OK, seconds=2), handed("b", 3.0)) == []


def test_delivery_inside_a_lease_is_a_fault():
    assert first_and(handed("b", 9.9)) == ["Message m was delivered 0.10 s before its lease could end."]
    assert first_and(op("extend", "a", 1, OK, seconds=30), handed("b", 30.9))
    assert first_and(op("nack", "a", 1, OK), handed("b", 1.0), handed("c", 10.9))
    # A Pull that was sent at 8 s was given its lease after that.
    assert first_and(handed("b", 12, asked=8), handed("c", 20.0)) == []
    assert first_and(handed("b", 12, asked=11), handed("c", 20.5))


def test_delivery_after_an_ack_is_a_fault_however_they_crossed():
    told = ["Message m was delivered after an ack of it had been answered OK."]
    assert told == first_and(op("ack", "a", 1, OK), handed("b", 60.0))
    # On its way while the ack was: whichever came first, one of the two must not have been.
    assert first_and(op("ack", "a", 9.5, OK, took=2), handed("b", 10.5))


def test_one_ack_id_is_delivered_once():
    assert first_and(handed("a", 12.0)) == ["Message m was delivered twice under one ack id."]


def test_operation_within_the_lease_must_succeed():
    for word in ("ack", "nack", "extend"):
        assert first_and(op(word, "a", 9, OK, seconds=1)) == []
        (fault,) = first_and(op(word, "a", 9, REFUSED, seconds=1))
        assert "was refused for good, but its ack id was good for 1.00 s more." in fault


def test_operation_after_the_lease_must_be_refused():
    for word in ("ack", "nack", "extend"):
        assert first_and(op(word, "a", 12, REFUSED, seconds=1)) == []
        (fault,) = first_and(op(word, "a", 12, OK, seconds=1))
        assert "was OK, but its ack id had been over for 1.00 s at least." in fault


def test_operation_around_the_deadline_may_end_either_way():
    for answer in (OK, REFUSED, UNKNOWN):
        assert first_and(op("ack", "a", 9.9, answer, took=0.2)) == []
    assert first_and(op("extend", "a", 9.9, OK, took=0.2, seconds=5), handed("b", 14.9)) == []
    assert first_and(op("extend", "a", 9.9, OK, took=0.2, seconds=5), handed("b", 14.8))


def test_what_was_refused_once_stays_refused():
    assert first_and(op("ack", "a", 10.5, REFUSED), op("ack", "a", 10.6, REFUSED)) == []
    (fault,) = first_and(op("ack", "a", 10.5, REFUSED), op("ack", "a", 10.6, OK))
    assert fault.endswith("but its ack id was over.")


def test_earlier_ack_id_must_be_refused():
    assert first_and(handed("b", 10.0), op("ack", "a", 10.5, REFUSED)) == []
    (fault,) = first_and(handed("b", 10.0), op("ack", "a", 10.5, OK))
    assert fault.endswith("but its ack id was that of an earlier delivery.")


def test_operation_that_a_redelivery_overtook_may_be_refused():
    crossing = handed("b", 10.5)
    assert first_and(op("extend", "a", 9.5, REFUSED, took=2, seconds=20), crossing) == []
    assert first_and(op("extend", "a", 9.5, OK, took=2, seconds=20), crossing)
    assert first_and(op("nack", "a", 9.5, OK, took=2), crossing) == []


def test_repeated_ack_must_succeed_and_a_nack_after_it_must_not():
    acked = op("ack", "a", 1, OK)
    assert first_and(acked, op("ack", "a", 60, OK), op("nack", "a", 61, REFUSED)) == []
    (fault,) = first_and(acked, op("ack", "a", 60, REFUSED))
    assert fault.endswith("but its ack id had acked the message.")
    assert first_and(acked, op("nack", "a", 60, OK))
    for answer in (OK, REFUSED):
        assert first_and(acked, op("extend", "a", 60, answer, seconds=10)) == []


def test_nacked_ack_id_is_good_for_a_nack_alone():
    nacked = op("nack", "a", 1, OK)
    for answer in (OK, REFUSED):
        assert first_and(nacked, op("nack", "a", 2, answer)) == []
        assert first_and(nacked, handed("b", 2.0), op("nack", "a", 3, answer)) == []
    (fault,) = first_and(nacked, op("ack", "a", 2, OK))
    assert fault.endswith("but its ack id had been nacked.")
    # The repeated one has no effect on the newer delivery.
    assert first_and(nacked, handed("b", 2.0), op("nack", "a", 3, OK), handed("c", 4.0))


def test_operation_without_an_answer_may_have_taken_effect_or_not():
    unknown = op("ack", "a", 1, UNKNOWN)
    assert first_and(unknown, handed("b", 10.0)) == []
    assert first_and(unknown, op("ack", "a", 60, OK)) == []
    assert first_and(unknown, op("ack", "a", 60, REFUSED)) == []
    # Not both: it was OK again after the lease, so it had taken effect.
    assert first_and(unknown, op("ack", "a", 60, OK), handed("b", 61.0))
    assert first_and(op("nack", "a", 1, UNKNOWN), handed("b", 1.5), op("ack", "b", 2, OK)) == []
    assert first_and(op("extend", "a", 1, UNKNOWN, seconds=60), handed("b", 9.0))


def test_message_that_nobody_published_is_a_fault():
    assert judge(Log(handed=[handed("a", 1.0)])) == ["Message m came, which was not published here."]
