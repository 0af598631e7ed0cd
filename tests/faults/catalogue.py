"""The faults, and what has to catch each of them."""

from __future__ import annotations

from typing import NamedTuple

from tests.faults.planting import Patch

_SUBSCRIPTION = "pubsubd.broker.subscription"
_BACKLOG = "pubsubd.broker.backlog"
_BROKER = "pubsubd.broker.broker"
_KEYS = "pubsubd.broker.keys"
_SAVED = "pubsubd.broker.saved"
_MACHINE = "pubsubd.eod.machine"
_STREAM = "pubsubd.server.stream"


class Histories(NamedTuple):
    """Simulated histories, of which one of the first `seeds` breaks one of `invariants`."""

    invariants: str
    seeds: int = 30


class Case(NamedTuple):
    """A case of the conformance suite, and its outcome."""

    id: str
    outcome: str = "fail"


class Fault(NamedTuple):
    what: str
    patches: tuple[Patch, ...]
    caught_by: Histories | Case


def _fault(what: str, module: str, old: str, new: str, caught_by: Histories | Case) -> Fault:
    return Fault(what, (Patch(module, old, new),), caught_by)


FAULTS = {
    # -- ack ids --------------------------------------------------------------------------------------------
    "stale-id-accepted": _fault(
        "an ack id works although the message was delivered again under another",
        _MACHINE,
        "(_ACK, _S.LAPSED): Verdict.PERMANENT",
        "(_ACK, _S.LAPSED): Verdict.APPLY_LATE",
        Case("CE-05"),
    ),
    "nacked-id-accepted": _fault(
        "an ack id works although it was nacked",
        _MACHINE,
        "(_ACK, _S.NACKED): Verdict.PERMANENT",
        "(_ACK, _S.NACKED): Verdict.APPLY_LATE",
        Histories("I4"),
    ),
    "expired-id-accepted": _fault(
        "a lease is over only when the timer has noticed",
        "pubsubd.eod.lease",
        "if lease is not None and now_us <= lease.deadline_us:",
        "if lease is not None:",
        Histories("I4"),
    ),
    "expired-lease-extendable": _fault(
        "an extension that comes too late is answered OK",
        _MACHINE,
        "(_EXTEND, _S.LAPSED): Verdict.PERMANENT",
        "(_EXTEND, _S.LAPSED): Verdict.NOOP",
        Case("CE-07"),
    ),
    "overtaken-id-told-ok": _fault(
        "the ack of an id is answered OK because another one of the message was acked",
        _MACHINE,
        "(_ACK, _S.OVERTAKEN): Verdict.PERMANENT",
        "(_ACK, _S.OVERTAKEN): Verdict.NOOP",
        Histories("I5"),
    ),
    "repeated-ack-refused": _fault(
        "the repetition of an ack that took effect is refused",
        _MACHINE,
        "(_ACK, _S.ACKED): Verdict.NOOP,\n    (_ACK, _S.OVERTAKEN): Verdict.PERMANENT",
        "(_ACK, _S.ACKED): Verdict.PERMANENT,\n    (_ACK, _S.OVERTAKEN): Verdict.PERMANENT",
        Case("CE-11"),
    ),
    "mixed-batch-drops-good-acks": _fault(
        "an ack beside an id that is refused has no effect",
        _SUBSCRIPTION,
        "        if leases:\n            self._ack(leases, call_id, now_us)\n",
        "        if leases and not others:\n            self._ack(leases, call_id, now_us)\n",
        Case("CT-09"),
    ),
    "forged-id-accepted": _fault(
        "the tag of an ack id is not looked at",
        "pubsubd.eod.ack_id",
        "if keyed.digest()[:tag_bytes] != tag:",
        "if False:",
        Histories("I4 I5"),
    ),
    "foreign-id-accepted": _fault(
        "an ack id of a deleted subscription is taken for one of its successor",
        _SUBSCRIPTION,
        "return token is not None and token.sub_id == self.sub_id",
        "return token is not None",
        Case("CE-33"),
    ),
    "nacks-forgotten-by-restart": _fault(
        "what became of ack ids is not restored",
        _SUBSCRIPTION,
        "        self.endings.extend(rows)\n        self._generation_max = max(",
        "        self._generation_max = max(",
        Histories("I5"),
    ),
    # -- durability -----------------------------------------------------------------------------------------
    "ack-answered-before-commit": _fault(
        "acks and extensions are answered before they are durable",
        "pubsubd.server.service",
        "                    # A refusal, too, may rest on what is not committed yet.\n"
        "                    await self._engine.settled()",
        "                    pass",
        Histories("I5"),
    ),
    "publish-answered-before-commit": _fault(
        "a Publish is answered before it is durable",
        "pubsubd.server.service",
        "broker.publish(request, len(data), caller, now_us, checked)\n        await self._engine.settled()",
        "broker.publish(request, len(data), caller, now_us, checked)",
        Histories("I1"),
    ),
    "failed-commit-told-permanent": _fault(
        "after a failed commit ack ids are refused for good",
        "pubsubd.eod.answer",
        "dict.fromkeys(ack_ids, UNAVAILABLE),",
        "dict.fromkeys(ack_ids, PERMANENT),",
        Histories("I5"),
    ),
    "failed-commit-told-ok": _fault(
        "after a failed commit acks on a stream are confirmed",
        _STREAM,
        "        except NotSettled:\n            settled = False\n        ack_ids",
        "        except NotSettled:\n            pass\n        ack_ids",
        Histories("I5"),
    ),
    "ack-lost-by-restart": _fault(
        "acks are not restored",
        _SAVED,
        "        case oplog.Finished():\n            for message_id in record.message_ids:",
        "        case oplog.Finished():\n            for message_id in record.message_ids[1:]:",
        Histories("I10"),
    ),
    "lease-not-restored": _fault(
        "what was leased is ready again after a restart",
        _SUBSCRIPTION,
        "        self._restore_leases(saved)\n",
        "        for message_id, one in saved.leased.items():\n"
        "            backlog.waiting[message_id] = Waiting(one.generation, one.attempt, one.okey)\n",
        Histories("I3 I10"),
    ),
    "extension-forgotten-by-restart": _fault(
        "a restart goes back to the deadline of the delivery",
        _SAVED,
        "leased[message_id].deadline_us = record.deadline_us",
        "pass",
        Histories("I10"),
    ),
    "generation-reused-after-restart": _fault(
        "a restart counts the deliveries of what waits one too low",
        _SAVED,
        "Waiting(lease.generation, lease.attempt + record.counts, lease.okey)",
        "Waiting(lease.generation - 1, lease.attempt + record.counts, lease.okey)",
        Histories("I10"),
    ),
    "attempts-forgotten-by-restart": _fault(
        "a restart does not count the attempt that failed last",
        _SAVED,
        "Waiting(lease.generation, lease.attempt + record.counts, lease.okey)",
        "Waiting(lease.generation, lease.attempt, lease.okey)",
        Case("CD-10"),
    ),
    "checkpoint-without-what-waits": _fault(
        "the state that replaces the log of operations leaves out what waits",
        _SUBSCRIPTION,
        "        if backlog.waiting:\n            records.append(self._waiting_record())\n",
        "",
        Histories("I10 core"),
    ),
    "retained-trimmed-early": _fault(
        "finished messages go after half the time for which they are to be kept",
        "pubsubd.broker.topic",
        "return Trim(through_id, now_us - kept_us)",
        "return Trim(through_id, now_us - kept_us // 2)",
        Histories("I10"),
    ),
    "owed-trimmed": _fault(
        "messages go though one of two subscriptions is owed them",
        "pubsubd.broker.topic",
        "through_id = min(low, default=self.last_id + 1) - 1",
        "through_id = max(low, default=self.last_id + 1) - 1",
        Histories("I6 I9 I10"),
    ),
    # -- what a refusal looks like --------------------------------------------------------------------------
    "details-trailer-missing": _fault(
        "refusals carry no details",
        "pubsubd.server.calls",
        'await context.abort(code, message, (("grpc-status-details-bin", whole.SerializeToString()),))',
        "await context.abort(code, message)",
        Case("CT-02"),
    ),
    "trailer-message-differs": _fault(
        "the message in the details is not that of the status",
        "pubsubd.server.calls",
        "Status(code=code.value[0], message=message, details=details)",
        'Status(code=code.value[0], message=f"{message} ", details=details)',
        Case("CT-02"),
    ),
    "wrong-reason": _fault(
        "refusals give another reason",
        "pubsubd.eod.answer",
        'REASON = "EXACTLY_ONCE_ACKID_FAILURE"',
        'REASON = "EXACTLY_ONCE_ACK_ID_FAILURE"',
        Case("CT-05"),
    ),
    "wrong-result": _fault(
        "the result of an ack id that is invalid has another name",
        "pubsubd.eod.answer",
        'PERMANENT = "PERMANENT_FAILURE_INVALID_ACK_ID"',
        'PERMANENT = "PERMANENT_ERROR_INVALID_ACK_ID"',
        Case("CT-02"),
    ),
    "unordered-told-unavailable": _fault(
        "acks out of order are answered UNAVAILABLE, which libraries retry below their exactly-once logic",
        "pubsubd.eod.answer",
        'status = "INVALID_ARGUMENT" if permanent else "ABORTED"',
        'status = "INVALID_ARGUMENT" if permanent else "UNAVAILABLE"',
        Case("CO-04"),
    ),
    # -- streams --------------------------------------------------------------------------------------------
    "flag-missing": _fault(
        "a response with messages does not say that delivery is exactly once",
        _STREAM,
        "await self._context.write(received + self._properties)",
        "await self._context.write(received)",
        Case("CS-59"),
    ),
    "confirmation-missing": _fault(
        "acks on a stream are not confirmed",
        _STREAM,
        "        if subscription.exactly_once:\n            task",
        "        if False:\n            task",
        Case("CO-07", "differs"),
    ),
    "malformed-id-ends-stream": _fault(
        "with exactly-once delivery, too, a malformed id ends the stream",
        _SUBSCRIPTION,
        "        if self.exactly_once:\n            return\n        for ack_id in ack_ids:",
        "        for ack_id in ack_ids:",
        Case("CS-52", "differs"),
    ),
    "silent-under-load": _fault(
        "the writer of a stream stops for good once it has written 30 times",
        _STREAM,
        "            if self._control:\n                await write(",
        "            self._rounds = getattr(self, '_rounds', 0) + 1\n"
        "            if self._rounds > 30:\n                await asyncio.Event().wait()\n"
        "            if self._control:\n                await write(",
        Case("CS-22"),
    ),
    "half-close-delivers-more": _fault(
        "a half-closed stream goes on and is given messages",
        _STREAM,
        "            self._engine.stop_assigning(self._consumer)\n            if self._confirming:",
        "            await asyncio.sleep(3)\n            if self._confirming:",
        Case("CS-23"),
    ),
    "duplicate-to-two-streams": _fault(
        "a message goes to two streams at once",
        _SUBSCRIPTION,
        "        if backlog.is_overdue:\n            self._look_for_expired(now_us)\n",
        "        served = [hand.consumer for hand in hands]\n"
        "        for consumer in [one for one in self.ready if hands and one not in served][:1]:\n"
        "            twin: Hand[Consumer, Pick] = Hand(consumer)\n"
        "            twin.items, twin.size = list(hands[0].items), hands[0].size\n"
        "            hands.append(twin)\n"
        "        if backlog.is_overdue:\n            self._look_for_expired(now_us)\n",
        Histories("I3 I4 I7 core"),
    ),
    # -- order ----------------------------------------------------------------------------------------------
    "key-order-broken": _fault(
        "messages of a key that failed wait behind those that were never delivered",
        _KEYS,
        "queue.extendleft(reversed(message_ids))",
        "queue.extend(message_ids)",
        Histories("I6 core"),
    ),
    "key-does-not-wait": _fault(
        "what follows a message of its key that waits is delivered before it",
        _BACKLOG,
        "if key is not None and (key.queue or not keys.may_go(key, consumer, now_us)):",
        "if key is not None and not keys.may_go(key, consumer, now_us):",
        Histories("I6 core"),
    ),
    "unordered-ack-accepted": _fault(
        "an ack works although an earlier message of its key is not acked",
        _SUBSCRIPTION,
        "leases, ahead = self.backlog.keys.split_in_order(leases)",
        "ahead: list[Lease] = []",
        Case("CO-04"),
    ),
    "order-not-restored-after-nack": _fault(
        "a nack leaves the leases of later messages of its key alone",
        _SUBSCRIPTION,
        "behind = keys.failed([lease for lease in leases if lease.okey]) if keys is not None else []",
        "behind: list[Lease] = []",
        Histories("I6 core"),
    ),
    "void-lease-cut-short": _fault(
        "a nack brings later messages of its key back while their clients work on them",
        _SUBSCRIPTION,
        "lease.generation, lease.attempt, lease.okey, lease.deadline_us if once else 0, once",
        "lease.generation, lease.attempt, lease.okey, 0, once",
        Histories("I3 I6 I10"),
    ),
    "key-affinity-ignored": _fault(
        "while messages of a key are outstanding others of it go to any stream",
        _KEYS,
        "        if owner is not None and self._is_open(owner):\n            return False\n",
        "        if owner is not None and self._is_open(owner):\n            return True\n",
        Case("CO-12"),
    ),
    # -- attempts and dead letters --------------------------------------------------------------------------
    "attempt-counted-twice": _fault(
        "a failure counts as two attempts",
        _SUBSCRIPTION,
        "waiting = ended[message_id] = Waiting(lease.generation, lease.attempt + 1, lease.okey)",
        "waiting = ended[message_id] = Waiting(lease.generation, lease.attempt + 2, lease.okey)",
        Histories("I8 I10"),
    ),
    "attempt-not-counted-at-expiry": _fault(
        "a lease that ran out does not count as an attempt",
        _SUBSCRIPTION,
        "            self._journal_void(_EXPIRE, leases, now_us)\n",
        "            self._journal_void(_EXPIRE, leases, now_us)\n"
        "            for lease in leases:\n                lease.attempt -= 1\n",
        Case("CD-03"),
    ),
    "forwarded-twice": _fault(
        "a dead letter is published twice",
        _BROKER,
        "            (new_id,) = self._publish(topic, [copy], _SERVER, now_us)\n",
        "            self._publish(topic, [copy], _SERVER, now_us)\n"
        "            (new_id,) = self._publish(topic, [copy], _SERVER, now_us)\n",
        Case("CD-05"),
    ),
    "forwarded-too-late": _fault(
        "a message gets one attempt more than the policy allows",
        _SUBSCRIPTION,
        "and self.failures(message_id, attempt) >= self._attempts_max",
        "and self.failures(message_id, attempt) > self._attempts_max",
        Histories("I8"),
    ),
    "forwarded-without-attribute": _fault(
        "a dead letter does not say which subscription it comes from",
        "pubsubd.model.dead_letter",
        '    attributes[f"{_PREFIX}Subscription"] = names.leaf(subscription_name)\n',
        "",
        Histories("I8"),
    ),
    # -- windows --------------------------------------------------------------------------------------------
    "window-overshot-by-messages": _fault(
        "a stream gets one message more than it asked for",
        "pubsubd.flow.window",
        "return max(0, self.max_messages - self.outstanding_messages)",
        "return max(0, self.max_messages + 1 - self.outstanding_messages)",
        Histories("I7"),
    ),
    "window-overshot-by-bytes": _fault(
        "the limit of bytes counts for each response by itself",
        "pubsubd.flow.window",
        "        return self.max_bytes - self.outstanding_bytes\n",
        "        return self.max_bytes\n",
        Histories("I7"),
    ),
    "window-not-freed": _fault(
        "what is acked goes on to count against the window",
        "pubsubd.eod.lease",
        "holder.outstanding_messages -= 1",
        "holder.outstanding_messages -= 0",
        Histories("I7"),
    ),
    # -- redelivery -----------------------------------------------------------------------------------------
    "redelivered-inside-backoff": _fault(
        "a nacked message does not rest",
        _BACKLOG,
        "            elif now_us <= waiting.ready_us:\n"
        "                heappush(self._delayed, (waiting.ready_us, message_id, False))\n"
        "            else:\n"
        "                heappush(self._returned, message_id)\n"
        "        for okey",
        "            else:\n                heappush(self._returned, message_id)\n        for okey",
        Histories("I3"),
    ),
    "acked-delivered-again": _fault(
        "every seventh message is delivered again although it was acked",
        _SUBSCRIPTION,
        "        self._finish([lease.message_id for lease in leases])\n",
        "        self._finish([lease.message_id for lease in leases])\n"
        "        again = {\n"
        "            lease.message_id: Waiting(lease.generation, lease.attempt, lease.okey)\n"
        "            for lease in leases\n"
        "            if lease.message_id % 7 == 0\n"
        "        }\n"
        "        self.backlog.put_back(again, now_us)\n",
        Histories("I2"),
    ),
    "retry-policy-ignored": _fault(
        "a retry policy has no effect",
        _SUBSCRIPTION,
        "self._backoff = backoff_of(resource)",
        "self._backoff = None",
        Histories("I3"),
    ),
    "never-woken": _fault(
        "what rests after a failure is forgotten unless something else happens",
        _BACKLOG,
        "return self._delayed[0][0] if self._delayed else None",
        "return None",
        Histories("liveness I9"),
    ),
    "delivered-after-retention": _fault(
        "messages are delivered although their retention is over",
        _SUBSCRIPTION,
        "backlog.begin(now_us, now_us - self.unacked_kept_us)",
        "backlog.begin(now_us, 0)",
        Histories("I9"),
    ),
    # -- filters, seeks, snapshots --------------------------------------------------------------------------
    "filter-ignored": _fault(
        "what is read from storage is not asked whether it matches",
        _BACKLOG,
        "        if matches is not None:\n            entries = [one for one",
        "        if False:\n            entries = [one for one",
        Histories("I9 I10 core"),
    ),
    "filter-wrong-for-absent": _fault(
        "a message without the attribute does not match a filter that asks for another value",
        "pubsubd.model.matching",
        'return f"not ({passes})" if negated else f"({passes})"',
        'return f"({name} in attributes and not {passes})" if negated else f"({passes})"',
        Histories("I9 I10"),
    ),
    "seek-loses-the-edge": _fault(
        "a seek acknowledges what was published at the very moment",
        "pubsubd.broker.tail",
        "at = bisect_left(self._entries, time_us, self._gone, key=",
        "at = bisect_left(self._entries, time_us + 1, self._gone, key=",
        Histories("I5 I9 I10"),
    ),
    "snapshot-misses-leased": _fault(
        "a snapshot does not hold what is outstanding when it is taken",
        _BACKLOG,
        "owed = {lease.message_id: lease.okey for lease in self._leases.values()}",
        "owed: dict[int, int] = {}",
        Histories("I9 I10"),
    ),
    # -- push -----------------------------------------------------------------------------------------------
    "push-acked-by-any-answer": _fault(
        "an endpoint that is not content is taken at its word that it was there",
        "pubsubd.push.client",
        "return Result(True) if status in ACKNOWLEDGING else",
        "return Result(True) if status < 400 else",
        Case("CP-09"),
    ),
    "push-follows-redirects": _fault(
        "a push goes where the endpoint points to",
        "pubsubd.push.client",
        "allow_redirects=False",
        "allow_redirects=True",
        Case("CP-10"),
    ),
    "push-of-a-key-at-once": _fault(
        "an endpoint gets the messages of an ordering key side by side",
        _KEYS,
        "if owner is consumer and not key.sealed and not consumer.serial:",
        "if owner is consumer and not key.sealed:",
        Case("CP-17"),
    ),
    "push-fails-without-counting": _fault(
        "what an endpoint does not accept comes again as if it had never been sent",
        "pubsubd.push.pusher",
        "self._outcomes.failed.append(ack_id)",
        "self._outcomes.unsent.append(ack_id)",
        Case("CP-07"),
    ),
    "push-acks-are-lost": _fault(
        "what an endpoint accepts is not acknowledged",
        "pubsubd.push.pusher",
        "self._outcomes.accepted.append(ack_id)",
        "pass",
        Case("CP-08"),
    ),
    "stream-outlives-the-turn-to-push": _fault(
        "a stream stays open when its subscription gets an endpoint",
        _BROKER,
        "if subscription.is_pushed != was_pushed:",
        "if False:",
        Case("CP-21"),
    ),
}
