"""Topics, subscriptions and what they owe. Pure: commands in, effects out, time as an argument.

See DESIGN.md. The names below are what shells may know of this room.
"""

from pubsubd.broker.broker import Broker, Caller
from pubsubd.broker.consumer import Consumer
from pubsubd.broker.effects import Delivery, SubscriptionRow
from pubsubd.broker.questions import Answer, Question, Sift
from pubsubd.broker.subscription import Refusal, Subscription

__all__ = [
    "Answer",
    "Broker",
    "Caller",
    "Consumer",
    "Delivery",
    "Question",
    "Refusal",
    "Sift",
    "Subscription",
    "SubscriptionRow",
]
