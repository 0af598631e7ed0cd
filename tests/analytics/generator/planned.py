"""The events of the plan: what is created, changed, sought, dropped, opened, started."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from analytics.layout import Kind
from tests.analytics.generator import world as plan
from tests.analytics.generator.events import Columns, Events
from tests.analytics.generator.segments import HOUR_US
from tests.analytics.generator.world import NEVER, PUBLISHERS, Control, Subscription, World

#: The text of an event, given its seq.
Text = Callable[[int], str]


class Planned:
    """`texts` are what events refer to by a negative mark: -1 is the first."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.texts: list[Text] = []
        self._events = Events(world.end_us)

    def checkpoints(self, t0_us: int, t1_us: int) -> Columns:
        """The resources, repeated at each full hour from `t0_us` to before `t1_us`."""
        for hour_us in range(-(-t0_us // HOUR_US) * HOUR_US, t1_us, HOUR_US):
            if hour_us > self.world.start_us:
                for name in self.world.topics:
                    self._topic(name, hour_us, checkpoint=True)
                for one in self.world.subscriptions:
                    if one.start_us < hour_us < one.end_us:
                        self._config(one, "created", hour_us, checkpoint=True)
        return self._events.take()

    def events(self, t0_us: int, t1_us: int) -> Columns:
        """Everything else of that time."""
        steps: list[tuple[int, Callable[[int], None]]] = [(self.world.start_us + 1, self._begin)]
        for number, (ts_us, clean) in enumerate(self.world.restarts_us):
            steps.append((ts_us, partial(self._restart, period=number + 1, clean=clean)))
        for one in self.world.subscriptions:
            steps.append((one.start_us, partial(self._create, one=one)))
            for control in one.controls:
                steps.append((control.ts_us, partial(self._obey, one=one, control=control)))
        for ts_us, step in sorted(steps, key=lambda pair: pair[0]):
            if t0_us <= ts_us < t1_us:
                step(ts_us)
        return self._events.take()

    # -- the server ----------------------------------------------------------------------------------------

    def _begin(self, at_us: int) -> None:
        self._start(at_us, 1, True)
        for name in self.world.topics:
            self._topic(name, at_us)

    def _restart(self, at_us: int, period: int, clean: bool) -> None:
        live = [one for one in self.world.subscriptions if one.start_us < at_us < one.end_us]
        if clean:
            for one in live:
                self._streams(one, period - 1, at_us, closed=True)
        self._start(at_us, period + 1, clean)
        for one in live:
            self._streams(one, period, at_us)

    def _start(self, at_us: int, boot: int, clean: bool) -> None:
        self._add(Kind.START, at_us, {"boot": boot, "version": "0.1.0", "clean": clean})
        for number in range(1, PUBLISHERS + 1):
            about = {"client": f"publisher-{number}", "unary": True}
            self._add(Kind.STREAM, at_us, about, client_id=number, stream_id=900_000 + boot * 10 + number)

    def _streams(self, one: Subscription, period: int, at_us: int, closed: bool = False) -> None:
        for slot in range(one.profile.clients):
            opened_us = max(one.start_us, self.world.restarts_us[period - 1][0] if period else 0)
            client = f"{one.profile.name}-{slot}"
            about = {
                "client": client,
                "max_outstanding_messages": 1000,
                "max_outstanding_bytes": 100_000_000,
                "stream_ack_deadline_seconds": one.profile.lease_s,
            }
            self._add(
                Kind.STREAM,
                at_us,
                {} if closed else about,
                topic_id=one.topic_id,
                sub_id=one.sub_id,
                ref_ts_us=opened_us if closed else 0,
                result=int(closed),
                client_id=self.world.client_id(period, one.index, slot),
                stream_id=self.world.stream_id(period, one.index, slot),
            )

    # -- resources -----------------------------------------------------------------------------------------

    def _create(self, at_us: int, one: Subscription) -> None:
        self._config(one, "created", at_us)
        period = sum(restart_us < at_us for restart_us, _ in self.world.restarts_us)
        self._streams(one, period, at_us)

    def _topic(self, name: str, at_us: int, **more: Any) -> None:
        about = {"change": "created", "topic": {"name": f"projects/p/topics/{name}"}, **more}
        self._add(Kind.CONFIG, at_us, about, topic_id=self.world.topics[name])

    def _config(self, one: Subscription, change: str, at_us: int, **more: Any) -> None:
        resource = one.profile.resource() | ({"detached": True} if change == "detached" else {})
        about = {"change": change, "subscription": resource, **more}
        self._add(Kind.CONFIG, at_us, about, topic_id=one.topic_id, sub_id=one.sub_id)

    def _obey(self, at_us: int, one: Subscription, control: Control) -> None:
        where = {"topic_id": one.topic_id, "sub_id": one.sub_id}
        if control.kind == plan.SEEK:
            about = {
                "kept_after_id": control.kept_after_id,
                "retain_acked": control.kept_us < NEVER,
                "kept_from_us": control.kept_us if control.kept_us < NEVER else at_us,
            }
            self._add(Kind.SEEK, at_us, about, aux=control.target_us, **where)
        elif control.kind == plan.SNAPSHOT:
            resource = {"name": control.name, "topic": f"projects/p/topics/{one.profile.topic}"}
            self._add(Kind.CONFIG, at_us, _taken(one, control, resource), **where)
        elif control.kind == plan.SEEK_SNAPSHOT:
            self._add(Kind.SEEK, at_us, _sought(one, control), aux=control.target_us, **where)
        elif control.kind == plan.BULK_DROP:
            self._add(Kind.DROP, at_us, None, aux=control.target_us, **where)
        elif control.kind == plan.DETACH:
            self._add(Kind.DROP, at_us, None, aux=at_us + 1, **where)
            self._config(one, "detached", at_us)
        else:
            self._config(one, "deleted", at_us)

    def _add(self, kind: Kind, at_us: int, about: dict[str, Any] | Text | None, **columns: int) -> None:
        mark = 0
        if about is not None:
            self.texts.append(about if callable(about) else lambda seq: json.dumps(about))
            mark = -len(self.texts)
        self._events.add(kind, [at_us], mark=mark, **columns)


def _taken(one: Subscription, control: Control, resource: dict[str, str]) -> Text:
    """A snapshot's creation, which the seek to it is going to name by its seq."""

    def text(seq: int) -> str:
        for other in one.controls:
            if other.name == control.name:
                other.snapshot_seq = seq
        return json.dumps({"change": "created", "snapshot": resource})

    return text


def _sought(one: Subscription, control: Control) -> Text:
    def text(seq: int) -> str:
        about = {
            "snapshot": control.name,
            "snapshot_seq": control.snapshot_seq,
            "retain_acked": one.profile.retain_acked,
            "kept_from_us": control.target_us,
        }
        return json.dumps(about)

    return text
