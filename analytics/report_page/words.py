"""What the page says about each plot: title, caption, and a sentence for when there is nothing to draw.

A caption says what is shown, and what good looks like, to somebody who knows Pub/Sub but not this program.
"""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    title: str
    caption: str
    empty: str


def _words(title: str, caption: str, empty: str) -> Words:
    return Words(title, " ".join(caption.split()), empty)


WORDS = {
    "rates": _words(
        "Messages per second, all subscriptions",
        """
        A published message counts once for every subscription that is owed it. Redelivered messages
        are part of the delivered ones. Good: delivered and acked follow published closely, and
        redelivered stays near zero. Delivered far above acked means that the same messages are sent
        again and again.
        """,
        "Nothing was published, delivered or acked.",
    ),
    "deliveries": _words(
        "Deliveries per second, by subscription",
        """
        The subscriptions with most deliveries, redeliveries included. Good: the shape of your own
        load. A line that falls to zero while others go on has lost its clients.
        """,
        "Nothing was published, delivered or acked.",
    ),
    "backlog": _words(
        "Backlog, by subscription",
        """
        Messages owed to a subscription and not yet acked, those that clients hold included; at the
        end of each minute (where minutes are merged, the highest). Good: low, or falling back after
        a peak. A line that only climbs means that clients ack more slowly than publishers publish.
        """,
        "No subscription had a backlog at the end of a minute.",
    ),
    "oldest-age": _words(
        "Age of the oldest unacked message, by subscription",
        """
        How long the oldest message that is not yet acked has been waiting. Good: below the time in
        which you want a message handled. A straight climb of one second per second is a message
        that nobody acks, or a subscription without clients.
        """,
        "No message was waiting at the end of a minute.",
    ),
    "latency-2": _words(
        "Publish to first delivery, all subscriptions",
        """
        From publishing to the first time that a client gets the message. Good: milliseconds while
        clients keep up; it grows with the backlog. p99 is the time that 99 of 100 stay below; exact
        to 1 %, also where minutes are merged.
        """,
        "Nothing was measured of: publish to first delivery.",
    ),
    "p99-2": _words(
        "Publish to first delivery, p99 by subscription",
        """
        99 of 100 messages were faster than this, from publishing to the first delivery. Drawn are
        the subscriptions with the highest p99 over the whole range. Good: flat lines. One line far
        above the others points to the clients of that subscription.
        """,
        "Nothing was measured of: publish to first delivery.",
    ),
    "latency-5": _words(
        "Delivery to ack, all subscriptions",
        """
        From handing a message to a client to its ack: the client's working time. Good: well below
        the ack deadline, at p99 too. p99 is the time that 99 of 100 stay below; exact to 1 %, also
        where minutes are merged.
        """,
        "Nothing was measured of: delivery to ack.",
    ),
    "p99-5": _words(
        "Delivery to ack, p99 by subscription",
        """
        99 of 100 messages were faster than this, from a delivery to its ack. Drawn are the
        subscriptions with the highest p99 over the whole range. Good: flat lines. One line far
        above the others points to the clients of that subscription.
        """,
        "Nothing was measured of: delivery to ack.",
    ),
    "latency-9": _words(
        "Publish to ack, all subscriptions",
        """
        From publishing to the ack that settled the message, redeliveries included: what your users
        wait for. Good: close to the sum of the two plots above. p99 is the time that 99 of 100 stay
        below; exact to 1 %, also where minutes are merged.
        """,
        "Nothing was measured of: publish to ack.",
    ),
    "p99-9": _words(
        "Publish to ack, p99 by subscription",
        """
        99 of 100 messages were faster than this, from publishing to the ack. Drawn are the
        subscriptions with the highest p99 over the whole range. Good: flat lines. One line far
        above the others points to the clients of that subscription.
        """,
        "Nothing was measured of: publish to ack.",
    ),
    "latency-1": _words(
        "Publish latency",
        """
        From the arrival of a publish request to the moment its messages are safe on disk. Good: a
        few milliseconds, or what your disk needs for a sync. p99 is the time that 99 of 100 stay
        below; exact to 1 %, also where minutes are merged.
        """,
        "Nothing was measured of: publish.",
    ),
    "latency-6": _words(
        "How long expired leases were held, all subscriptions",
        """
        From handing a message to a client to the end of its lease without an ack. Good: nothing
        here. A line at the ack deadline means clients that never answered; above it, clients that
        extended and then gave up. p99 is the time that 99 of 100 stay below; exact to 1 %, also
        where minutes are merged.
        """,
        "Nothing was measured of: lease held at expiry.",
    ),
    "failures": _words(
        "Failures per minute by reason, all subscriptions",
        """
        Expired: the ack deadline passed before the client acked. Nacked: the client gave the
        message back. Void: the lease ended for another reason (an earlier message of its ordering
        key failed, the stream ended, the subscription was detached). The rest are requests that
        were refused. Good: all near zero; some expiries are normal when clients stop.
        """,
        "No failures: no lease expired, nothing was nacked, no ack was refused.",
    ),
    "ack-failures": _words(
        "Acks without effect, share of all acks",
        """
        Invalid id: the lease was over when the ack came; the message will be sent again. Try again:
        a passing failure. Already done: repeated acks, which are harmless. Good: all below 1 %.
        Many invalid ids mean that clients take longer than their ack deadline.
        """,
        "Every ack took effect.",
    ),
    "redelivered": _words(
        "Redelivered share, by subscription",
        """
        Share of deliveries that were not the first of their message. Good: below 1 %. More means
        wasted work: clients that nack, die, or miss their ack deadline.
        """,
        "Nothing was delivered a second time.",
    ),
    "expired": _words(
        "Expired share, by subscription",
        """
        Leases that ran out, as share of deliveries. Good: below 1 %. More means that the ack
        deadline is too short for the work, or that clients take more messages than they can handle
        (see Advice). It can pass 100 % in a minute when leases run out that were given earlier.
        """,
        "No lease expired.",
    ),
    "clients": _words(
        "Clients, by subscription",
        """
        Different clients that got messages. Good: as many as you run. Zero while a backlog grows
        means that nobody is listening.
        """,
        "No client was seen.",
    ),
    "fairness": _words(
        "Fairness among clients (Jain's index), by subscription",
        """
        How evenly deliveries were spread over the clients of a subscription: 1 is even, 1/n means
        that one of n clients got everything. Only where two or more clients were seen. Good: above
        0.8. Lower is no fault if some clients have smaller flow control limits or are slower by
        design.
        """,
        "No subscription had two or more clients at the same time.",
    ),
    "largest-share": _words(
        "Largest share of one client, by subscription",
        """
        The part of all deliveries that went to the busiest client. Only where two or more clients
        were seen. Good: about 100 % divided by the number of clients.
        """,
        "No subscription had two or more clients at the same time.",
    ),
    "attempts": _words(
        "Messages by number of deliveries, all subscriptions",
        """
        How often a message was delivered until it was acked, left, or the journal ended. Good:
        almost everything in the first bar, and each following bar far lower; the scale is
        logarithmic.
        """,
        "No message was delivered.",
    ),
    "attempts-share": _words(
        "Messages that needed more deliveries, by subscription",
        """
        Of the messages that were delivered at all, the share that was delivered more than so many
        times. Good: each line falls steeply. A flat end is a group of messages that always fail:
        give such a subscription a dead letter topic.
        """,
        "No message was delivered more than once.",
    ),
    "dead-letters": _words(
        "Dead letters per minute, by subscription",
        """
        Messages moved to the dead letter topic after too many delivery attempts. Good: none, or a
        thin, steady trickle of messages that are really broken. A burst is usually a failure of the
        clients, and those messages deserve a second life.
        """,
        "No message was moved to a dead letter topic.",
    ),
    "left": _words(
        "Messages that left without an ack, all subscriptions",
        """
        Dropped: older than the retention, or the subscription was detached; this is loss by
        configuration. Rejected by the filter is not a loss: the subscription never wanted them.
        Good: no drops.
        """,
        "Every message that left had been acked.",
    ),
}

CODES_IN_WORDS = {
    "G0_reference": "A record gives another time for an earlier event than that event has.",
    "G1_delivered_after_ack": "Delivered again although its ack had been confirmed.",
    "G1_delivered_after_seek": "Delivered although a seek had acknowledged it.",
    "G2_early_redelivery": "Delivered again while an earlier lease was still running.",
    "G2_early_expire": "A lease was ended before its deadline.",
    "G3_valid_rejected": "An ack, nack or deadline change was refused although its lease was running.",
    "G3_invalid_accepted": "An ack, nack or deadline change was accepted although its lease was over.",
    "G3_repeat_accepted": "A repeated ack was recorded as if it were the first; harmless.",
    "G4_lost": "Owed, never acked, not gone, and not in the backlog.",
    "G4_ghost": "In the backlog, although it is not owed, or was acked, or is gone.",
    "G5_out_of_order": "Delivered before a message of the same ordering key that was published earlier.",
    "G5_skipped": "Delivered while an earlier message of the same ordering key was never delivered.",
    "G5_redelivery_gap": "After a redelivery, the next delivery of the ordering key left a message out.",
}
