"""What cases of more than one group share: the times that they wait, and what they do to a subscription."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable
from typing import Any

import grpc

from pubsubd.conform.calls import PERMANENT, Refusal
from pubsubd.conform.case import check
from pubsubd.conform.lab import PULL_MESSAGES_MAX, Delivery, Stream, Sub, until

REFUSED = f"refused with {PERMANENT}"

# The deadline of a subscription of the checklist, and three seconds beyond it: whatever had to come back
# has come by then.
LEASE_SECONDS = 10
LEASE_AND_MORE = 13

# How long a first delivery may take, whose time is not part of a promise: also an endpoint far away makes it.
DELIVERY_SECONDS_MAX = 20.0


def in_a_row(items: Iterable[Any]) -> str:
    """`m1, m2 and m3`; `nothing` when it is."""
    *rest, last = list(map(str, items)) or ["nothing"]
    return f"{', '.join(rest)} and {last}" if rest else last


def altered(ack_id: str) -> dict[str, str]:
    """Copies with one character flipped, cut short, and with a suffix, each with words for what was done."""
    copies = {
        "without its last character": ack_id[:-1],
        "cut in half": ack_id[: len(ack_id) // 2],
        "with an A behind it": ack_id + "A",
        "with a = behind it": ack_id + "=",
        "written twice": ack_id + ack_id,
    }
    ends = {"first": 0, "second": 1, "middle": len(ack_id) // 2, "last": len(ack_id) - 1}
    for word, place in ends.items():
        other = "A" if ack_id[place] != "A" else "B"
        copies[f"with its {word} character changed"] = ack_id[:place] + other + ack_id[place + 1 :]
    return copies


async def pull_one(sub: Sub) -> tuple[float, Delivery]:
    """Publishes a message and pulls it; its lease began after the moment that stands before it."""
    await sub.publish()
    asked = time.monotonic()
    (a,) = await sub.pull()
    return asked, a


async def lease_many(sub: Sub, count: int) -> list[Delivery]:
    """Publishes messages and pulls them, each share extended so that none ends while others are pulled."""
    await sub.publish(count)
    leased: list[Delivery] = []
    while len(leased) < count:
        share = await sub.pull(min(count - len(leased), PULL_MESSAGES_MAX), within=30)
        await sub.modack(60, *share)
        leased += share
    return leased


async def quiet_until(moment: float, sub: Sub, stream: Stream) -> None:
    """Nothing comes until then, neither to Pulls nor to a stream that stays open for what comes afterwards.

    A stream that was closed instead may have the next message sent after it, which is another promise.
    """
    while (now := time.monotonic()) < moment:
        seen = stream.take_now() + await sub.pull_now()
        check(not seen, f"A message came that was not due for {moment - now:.1f} s at least.")
        await until(min(now + 1, moment))
    stream.check_open()


async def is_refused(call: Awaitable[Any], *deliveries: Delivery) -> bool:
    """Whether the call is refused for good for these deliveries; for where both answers are allowed."""
    try:
        await call
    except grpc.RpcError as error:
        results = Refusal.of(error).results
        if not results:
            raise
        for delivery in deliveries:
            seen = results.get(delivery.ack_id, "absent")
            check(seen == PERMANENT, f"The result of an ack id is {seen}, neither OK nor {PERMANENT}.")
        return True
    return False
