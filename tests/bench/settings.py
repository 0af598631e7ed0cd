"""The sizes of a run: quick by default, those of the published figures with `--full`."""

from __future__ import annotations

from dataclasses import Field, dataclass, field, fields
from typing import Any

from tests.bench.load import DrainOptions


def size(quick: float, help_text: str, full: float | None = None, least: float = 1) -> Any:
    full = quick if full is None else full
    return field(default=quick, metadata={"help": help_text, "full": full, "least": least})


@dataclass
class Settings:
    messages: int = size(50_000, "messages published and drained in each repeat", full=100_000)
    slow_messages: int = size(4_000, "messages drained from the emulator in each repeat", full=10_000)
    message_bytes: int = size(1_000, "data bytes of each message", least=8)
    repeats: int = size(3, "repeats of publish and drain, the servers taking turns", full=5)
    publish_batch: int = size(100, "messages per Publish request")
    publish_in_flight: int = size(8, "Publish requests on their way at once")
    ack_batch: int = size(1_000, "ack ids per Acknowledge request")
    acks_in_flight: int = size(4, "Acknowledge requests on their way at once")
    outstanding: int = size(0, "max_outstanding_messages of the draining stream; 0 is no limit", least=0)
    drain_seconds: int = size(300, "give a drain up after so many seconds")
    latency_rate: int = size(1_000, "messages per second, one per Publish request")
    latency_seconds: float = size(5, "seconds for which the latency is measured", full=30)
    ack_interval_ms: float = size(10, "milliseconds between acknowledgements of the latency's receiver")
    backlog: int = size(100_000, "messages of the large backlog", full=1_000_000)
    backlog_small: int = size(10_000, "messages of the small backlog it is compared with")
    backlog_repeats: int = size(3, "repeats of the small backlog, which is over in a moment", full=5)
    streams: int = size(100, "open idle streams, a connection each", full=500)
    subscriptions: int = size(400, "idle subscriptions", full=2_000)
    idle_seconds: float = size(8, "seconds for which idling is watched", full=20)
    ping_seconds: float = size(30, "seconds between the pings of an idle client")
    start_repeats: int = size(3, "repeats of the start", full=5)
    filter_messages: int = size(50_000, "messages published for each kind of filter", full=100_000)
    filter_repeats: int = size(5, "repeats of publishing with and without a filter", full=9)
    ordering_keys: int = size(10_000, "ordering keys of one subscription", full=100_000)
    ordering_repeats: int = size(3, "repeats of draining with and without ordering keys", full=5)
    held_messages: int = size(2_000, "messages that wait behind an unacked one of their key", full=20_000)
    push_messages: int = size(10_000, "messages pushed to an endpoint in each repeat", full=50_000)
    push_repeats: int = size(3, "repeats of pushing", full=5)
    seek_messages: int = size(100_000, "retained messages of the subscription that seeks", full=1_000_000)
    seek_seconds: float = size(5, "seconds of seeking while another's latency is measured", full=20)
    seek_rate: int = size(200, "messages per second of that other subscription")
    schema_messages: int = size(20_000, "messages published for each kind of schema", full=100_000)
    schema_repeats: int = size(5, "repeats of publishing with and without a schema", full=9)

    def drain_options(self, *, receipt_modack: bool = False, mark: int = 0) -> DrainOptions:
        return DrainOptions(
            ack_batch=self.ack_batch,
            acks_in_flight=self.acks_in_flight,
            max_outstanding_messages=self.outstanding,
            receipt_modack=receipt_modack,
            seconds_max=self.drain_seconds,
            mark=mark,
        )


def size_fields() -> tuple[Field[Any], ...]:
    return fields(Settings)


def full_settings() -> dict[str, Any]:
    return {each.name: each.metadata["full"] for each in fields(Settings)}
