"""Commits that fail or take too long: what clients are told, and that nothing else follows from them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from pubsubd.wire import pb
from tests.crash.replay import ACK, OK, RECORD, Record
from tests.crash.served import SUBSCRIPTION, TOPIC, Fault, Served, check_journal
from tests.wire.calls import refused, transient

OTHER = "projects/crash/subscriptions/other"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as served:
        served.create()
        yield served


class Stream:
    """An open StreamingPull, read in the background."""

    def __init__(self, served: Served, subscription: str = SUBSCRIPTION, **first: Any) -> None:
        self.responses: list[Any] = []
        self.ended: grpc.RpcError | None = None
        self._requests: queue.Queue[Any] = queue.Queue()
        self.send(subscription=subscription, stream_ack_deadline_seconds=10, protocol_version=1, **first)
        self._call = served.client.StreamingPull(iter(self._requests.get, None))
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **fields: Any) -> None:
        self._requests.put(pb.StreamingPullRequest(**fields))

    def _read(self) -> None:
        try:
            for response in self._call:
                self.responses.append(response)
        except grpc.RpcError as error:
            self.ended = error

    @property
    def received(self) -> list[Any]:
        return [received for response in list(self.responses) for received in response.received_messages]

    def wait(self, what: Callable[[Any], Any], seconds: float = 5, after: int = 0) -> Any:
        """The first response from number `after` on that `what` says something of."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            assert self.ended is None, self.ended
            for response in self.responses[after:]:
                if what(response):
                    return response
            time.sleep(0.01)
        raise AssertionError(f"not in {seconds} s")

    def close(self) -> None:
        self._call.cancel()


def recover(served: Served) -> None:
    """Clear the fault and wait until the server has noticed."""
    served.inject(Fault.NONE)
    until = time.monotonic() + 20
    while True:
        try:
            served.publish(b"probe", topic=TOPIC)
        except grpc.RpcError:
            assert time.monotonic() < until, "it does not recover"
            time.sleep(0.1)
        else:
            return


def _get_topic(served: Served) -> str:
    try:
        return str(served.client.GetTopic(topic=TOPIC).name)
    except grpc.RpcError as error:
        assert error.code() is StatusCode.UNAVAILABLE
        time.sleep(0.1)
        return ""


def data_of(received: list[Any]) -> list[bytes]:
    return sorted(one.message.data for one in received if one.message.data != b"probe")


def test_what_is_answered_when_a_commit_fails(served: Served) -> None:
    served.subscribe(exactly_once=False, subscription=OTHER)
    served.publish(b"x", b"y")
    first, second = served.pull(2)
    (plain,) = served.pull(1, subscription=OTHER)
    stream = Stream(served)
    stream.wait(lambda response: True)
    served.inject(Fault.FAIL)

    with refused(StatusCode.UNAVAILABLE):
        served.publish(b"z")
    with transient(first):
        served.ack(first)
    with transient(first, second):
        served.modack(60, first, second)
    with transient(second):
        served.modack(0, second)
    with transient(plain):
        served.ack(plain, subscription=OTHER)
    with refused(StatusCode.UNAVAILABLE):
        served.client.CreateTopic(name="projects/crash/topics/new")
    with refused(StatusCode.UNAVAILABLE):
        served.client.DeleteSubscription(subscription=OTHER)
    stream.send(ack_ids=[first.ack_id], modify_deadline_ack_ids=[second.ack_id], modify_deadline_seconds=[30])
    confirmed = stream.wait(lambda response: response.acknowledge_confirmation.ByteSize())
    assert confirmed.acknowledge_confirmation.temporary_failed_ack_ids == [first.ack_id]
    assert confirmed.modify_ack_deadline_confirmation.temporary_failed_ack_ids == [second.ack_id]
    # What needs no commit is answered, unless it would tell of what is just being tried.
    assert TOPIC in [_get_topic(served) for _ in range(10)]
    assert stream.ended is None

    recover(served)
    with refused(StatusCode.NOT_FOUND):
        served.client.GetTopic(topic="projects/crash/topics/new")
    served.ack(first, second)
    served.ack(plain, subscription=OTHER)
    # The stream is alive, and was not handed what failed to be published.
    stream.wait(lambda response: response.received_messages)
    assert data_of(stream.received) == []
    assert data_of(served.pull(10, subscription=OTHER)) == [b"y"]
    stream.close()

    served.kill()
    replayer = check_journal(served.stored())
    (subscription,) = (one for one in replayer.subscriptions.values() if one.name == SUBSCRIPTION)
    assert {int(one.message.message_id) for one in (first, second)} <= set(subscription.acked)


def test_a_failed_ack_can_be_repeated_and_a_failed_nack_did_nothing(served: Served) -> None:
    served.publish(b"x", b"y")
    acked, nacked = served.pull(2)
    served.inject(Fault.FAIL, commits=1)
    with transient(acked):
        served.ack(acked)
    recover(served)
    served.inject(Fault.FAIL, commits=1)
    with transient(nacked):
        served.modack(0, nacked)
    recover(served)

    served.ack(acked)
    assert data_of(served.pull_now()) == []
    served.ack(nacked)

    served.kill()
    stored = served.stored()
    check_journal(stored)
    acks = [Record(*fields) for row in stored.rows for fields in RECORD.iter_unpack(row.data)]
    assert [record.result for record in acks if record.kind == ACK] == [OK, OK]


def test_a_delivery_whose_commit_failed_is_made_again(served: Served) -> None:
    served.publish(b"x")
    served.inject(Fault.FAIL, commits=1)
    stream = Stream(served)

    recover(served)
    stream.wait(lambda response: response.received_messages)

    assert data_of(stream.received) == [b"x"]
    served.ack(*stream.received)
    stream.close()
    served.kill()
    check_journal(served.stored())


def test_nothing_is_delivered_before_a_commit_succeeds_again(served: Served) -> None:
    served.publish(b"x")
    served.inject(Fault.FAIL)
    stream = Stream(served)
    stream.wait(lambda response: True)
    time.sleep(1)
    assert stream.received == []

    recover(served)
    stream.wait(lambda response: response.received_messages)
    stream.close()


def test_a_lease_that_runs_out_meanwhile_is_over(served: Served) -> None:
    served.publish(b"x")
    (leased,) = served.pull()
    served.modack(1, leased)
    served.inject(Fault.FAIL)
    with transient(leased):
        served.ack(leased)
    time.sleep(1.2)

    recover(served)

    with pytest.raises(grpc.RpcError) as error:
        served.ack(leased)
    assert error.value.code() is StatusCode.INVALID_ARGUMENT
    assert data_of(served.pull(1) + served.pull(1)) == [b"x"]


@pytest.mark.parametrize("change", ["DeleteSubscription", "DetachSubscription"])
def test_a_removal_that_failed_removes_nothing(served: Served, change: str) -> None:
    datas = [b"%04d" % number for number in range(3000)]
    for start in range(0, len(datas), 1000):
        served.publish(*datas[start : start + 1000])
    leased = served.pull(500)
    served.inject(Fault.FAIL, commits=1)

    with refused(StatusCode.UNAVAILABLE):
        getattr(served.client, change)(subscription=SUBSCRIPTION)
    recover(served)

    served.ack(*leased)
    seen = data_of(leased)
    # From the file, too: what is in memory would hide what was deleted from storage.
    served.restart()
    seen += _drain(served)
    assert sorted(seen) == datas


def test_messages_whose_acks_failed_are_still_there(served: Served) -> None:
    """So many that their rows would be removed with the acks."""
    datas = [b"%05d" % number for number in range(3000)]
    for start in range(0, len(datas), 1000):
        served.publish(*datas[start : start + 1000])
    leased = [one for _ in range(3) for one in served.pull(1000)]
    served.inject(Fault.FAIL)
    for start in range(0, len(leased), 1000):
        part = leased[start : start + 1000]
        with transient(*part):
            served.ack(*part)
    recover(served)
    for start in range(0, len(leased), 1000):
        served.modack(0, *leased[start : start + 1000])

    assert sorted(_drain(served)) == datas
    served.kill()
    check_journal(served.stored())


def _drain(served: Served) -> list[bytes]:
    found: list[bytes] = []
    while received := served.pull_now():
        found += data_of(received)
        served.ack(*received)
    return found


def test_a_stream_opened_while_commits_fail_is_known_to_the_journal(served: Served) -> None:
    served.inject(Fault.FAIL)
    stream = Stream(served, client_id="somebody new")
    stream.wait(lambda response: True)
    time.sleep(0.3)
    recover(served)
    stream.wait(lambda response: response.received_messages)
    stream.close()
    time.sleep(0.3)

    served.kill()
    check_journal(served.stored())


def test_ids_are_not_used_twice_after_a_failed_publish(served: Served) -> None:
    """Whoever saw an id of the failed commit, in a log or a trace, must not find another message under it."""
    (before,) = served.publish(b"x")
    served.inject(Fault.FAIL, commits=1)
    with refused(StatusCode.UNAVAILABLE):
        served.publish(b"lost")
    recover(served)
    (after,) = served.publish(b"y")

    assert after > before
    received = served.pull(10)
    assert data_of(received) == [b"x", b"y"]
    assert len({one.message.message_id for one in received}) == len(received)


def test_a_server_that_is_told_to_stop_while_commits_fail_says_so(served: Served) -> None:
    served.publish(b"x")
    served.inject(Fault.FAIL)

    code = served.stop()

    assert "Traceback" not in served.server.output
    assert "commit failed" in served.server.output
    assert code == 0 or "pubsubd: " in served.server.output
    served.start()
    assert data_of(served.pull()) == [b"x"]


@pytest.mark.slow
def test_what_is_answered_when_a_commit_takes_too_long(served: Served) -> None:
    served.publish(b"x", b"y", b"z")
    first, second, third = served.pull(3)
    served.modack(60, first, second, third)
    stream = Stream(served)
    stream.wait(lambda response: True)
    served.inject(Fault.STALL, commits=1, stall={"seconds": 20})
    began = time.monotonic()
    outcomes: dict[str, float] = {}

    def ask(name: str, call: Callable[[], None]) -> threading.Thread:
        def work() -> None:
            call()
            outcomes[name] = time.monotonic() - began

        thread = threading.Thread(target=work)
        thread.start()
        return thread

    def ack() -> None:
        with transient(first):
            served.ack(first)

    def extend() -> None:
        with transient(second):
            served.modack(60, second)

    def publish() -> None:
        with refused(StatusCode.UNAVAILABLE):
            served.publish(b"late")

    threads = [ask("ack", ack)]
    time.sleep(0.5)  # the commit that waits is that of the ack; what comes now waits behind it
    threads += [ask("extend", extend), ask("publish", publish)]
    before = len(stream.responses)
    stream.send()
    stream.wait(lambda response: True, 2, after=before)
    before = len(stream.responses)
    stream.send(ack_ids=[third.ack_id])
    confirmed = stream.wait(lambda response: response.acknowledge_confirmation.ByteSize(), 15, after=before)
    assert confirmed.acknowledge_confirmation.temporary_failed_ack_ids == [third.ack_id]
    for thread in threads:
        thread.join()
    assert set(outcomes) == {"ack", "extend", "publish"}
    assert max(outcomes.values()) <= 15
    time.sleep(max(0.0, 21 - (time.monotonic() - began)))

    # It became durable after all, or it did not: a repetition is right in both cases.
    served.ack(first, second, third)
    assert data_of(served.pull_now() + stream.received) in ([], [b"late"])
    assert stream.ended is None
    stream.close()
    served.kill()
    check_journal(served.stored())


@pytest.mark.slow
def test_a_delivery_whose_commit_took_too_long_is_not_sent(served: Served) -> None:
    """Its lease began long ago: the client would get less of it than it was promised."""
    served.publish(b"x")
    served.inject(Fault.STALL, commits=1, stall={"seconds": 3})
    began = time.monotonic()
    stream = Stream(served)

    stream.wait(lambda response: response.received_messages, 20)

    # Its lease of ten seconds lapsed first.
    assert time.monotonic() - began > 9
    (received,) = stream.received
    served.ack(received)
    stream.close()
    served.kill()
    replayer = check_journal(served.stored())
    (subscription,) = replayer.subscriptions.values()
    assert list(subscription.acked.values()) == [2]
