"""CE: the life of a delivery under exactly-once: leases, extensions, nacks, acks, restarts."""

from __future__ import annotations

from pubsubd.conform.case import Hook, case
from pubsubd.conform.lab import Lab


@case(
    "CE-14",
    promise="A message whose ack was answered OK does not return after the server is killed.",
    critical="PNGJX",
    needs=[Hook.RESTART],
    seconds=20,
)
async def acked_message_does_not_return_after_a_kill(lab: Lab) -> str:
    async with lab.own_server() as own:
        sub = await own.subscription()
        (a,) = await sub.lease()
        await sub.ack(a)
        await own.restart()

        await sub.nothing_for(13)
        await sub.ack(a)
    return "Killed right after the answer; no redelivery for 13 s, and the same ack is OK again."
