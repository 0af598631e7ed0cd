"""CT: what unary Acknowledge and ModifyAckDeadline answer for each ack id under exactly-once delivery."""

from __future__ import annotations

from pubsubd.conform.calls import permanent
from pubsubd.conform.case import case, check
from pubsubd.conform.lab import Lab
from pubsubd.wire import pb


@case(
    "CT-01",
    promise="An ack inside the lease is answered OK and Empty, and ends the message.",
    critical="PNGJX",
    seconds=31,
)
async def ack_ends_the_message(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease()

    check(await sub.ack(a) == pb.Empty(), "The ack was answered with something other than Empty.")
    await sub.nothing_for(30)
    return "Answered OK; no redelivery for 30 s."


@case(
    "CT-02",
    promise="The ack id of an expired lease is refused for good.",
    critical="PNGJX",
    seconds=3,
)
async def expired_ack_id_is_permanent(lab: Lab) -> str:
    sub = await lab.subscription()
    (a,) = await sub.lease_expired()

    with permanent(a) as refusal:
        await sub.ack(a)
    return f"Refused with {refusal.code.name} and {refusal.results[a.ack_id]}."
