"""The gcloud command line, pointed at the server as its users point it at the emulator."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import ServerProcess

GCLOUD = shutil.which("gcloud")

pytestmark = [
    # A second or two for each command.
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(GCLOUD is None, reason="gcloud is not installed"),
]


class Failed(Exception):
    """The command ended with an error; the text is what it said."""


class Gcloud:
    """`gcloud pubsub` in a project of its own, with a configuration of its own."""

    def __init__(self, port: int, config: Path) -> None:
        self.project = f"gcloud-{uuid.uuid4().hex[:12]}"
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("CLOUDSDK", "PUBSUB"))
        }
        self._environment = {
            **clean,
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_PUBSUB": f"http://localhost:{port}/",
            "CLOUDSDK_AUTH_DISABLE_CREDENTIALS": "true",
            "CLOUDSDK_CONFIG": str(config),
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "true",
            "CLOUDSDK_CORE_PROJECT": self.project,
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "true",
        }

    def __call__(self, command: str, *arguments: str) -> Any:
        """Run `gcloud pubsub` with the words of `command` and more arguments; what it prints as JSON."""
        assert GCLOUD is not None
        ran = subprocess.run(
            [GCLOUD, "pubsub", *command.split(), *arguments, "--format=json"],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=90,
        )
        if ran.returncode:
            raise Failed(ran.stderr)
        return json.loads(ran.stdout) if ran.stdout.strip() else None

    def name(self, kind: str, leaf: str) -> str:
        return f"projects/{self.project}/{kind}/{leaf}"


@pytest.fixture
def gcloud(server: ServerProcess, tmp_path: Path) -> Gcloud:
    return Gcloud(server.port, tmp_path)


def test_topics(gcloud: Gcloud) -> None:
    name = gcloud.name("topics", "orders")
    gcloud("topics create orders --labels=team=a,tier=b --message-retention-duration=1h")
    shown = gcloud("topics describe orders")
    assert shown == {
        "name": name,
        "labels": {"team": "a", "tier": "b"},
        "messageRetentionDuration": "3600s",
    }
    gcloud("topics create refunds bills")
    listed = gcloud("topics list")
    assert sorted(topic["name"].rpartition("/")[2] for topic in listed) == ["bills", "orders", "refunds"]
    assert [topic["name"] for topic in gcloud("topics list", "--filter=name.scope(topics):orders")] == [name]
    assert len(gcloud("topics list --page-size=2")) == 3

    gcloud("topics update orders --update-labels=team=c --remove-labels=tier")
    gcloud("topics update orders --message-retention-duration=2d")
    shown = gcloud("topics describe orders")
    assert (shown["labels"], shown["messageRetentionDuration"]) == ({"team": "c"}, "172800s")
    gcloud("topics update orders --clear-labels --clear-message-retention-duration")
    assert gcloud("topics describe orders") == {"name": name}

    with pytest.raises(Failed, match="already exists"):
        gcloud("topics create orders")
    with pytest.raises(Failed, match="Invalid resource name given"):
        gcloud("topics create goog-orders")
    with pytest.raises(Failed, match="Resource not found"):
        gcloud("topics describe nothing")
    gcloud("topics delete orders refunds")
    assert len(gcloud("topics list")) == 1


def test_messages(gcloud: Gcloud) -> None:
    gcloud("topics create orders")
    gcloud("subscriptions create billing --topic=orders --ack-deadline=60 --enable-message-ordering")
    ids = [
        gcloud("topics publish orders", "--message=one order", "--attribute=k=v,l=w")["messageIds"][0],
        gcloud("topics publish orders", "--message=\u20ac", "--ordering-key=key")["messageIds"][0],
    ]
    received = gcloud("subscriptions pull billing --limit=10")
    assert sorted(each["message"]["messageId"] for each in received) == sorted(ids)
    by_id = {each["message"]["messageId"]: each for each in received}
    first, second = (by_id[message_id]["message"] for message_id in ids)
    assert base64.b64decode(first["data"]) == b"one order"
    assert first["attributes"] == {"k": "v", "l": "w"}
    assert base64.b64decode(second["data"]).decode() == "\u20ac"
    assert second["orderingKey"] == "key"

    ack_ids = [by_id[message_id]["ackId"] for message_id in ids]
    gcloud("subscriptions modify-message-ack-deadline billing --ack-deadline=0", f"--ack-ids={ack_ids[0]}")
    (again,) = gcloud("subscriptions pull billing --auto-ack")
    assert again["message"]["messageId"] == ids[0]
    gcloud("subscriptions ack billing", f"--ack-ids={ack_ids[1]}")
    gcloud("subscriptions seek billing --time=2100-01-01T00:00:00Z")
    with pytest.raises(Failed, match="empty"):
        gcloud("topics publish orders", "--message=")


def test_subscriptions(gcloud: Gcloud) -> None:
    gcloud("topics create orders")
    gcloud("topics create dead")
    gcloud(
        "subscriptions create billing --topic=orders --ack-deadline=20 --enable-exactly-once-delivery"
        " --expiration-period=never --message-retention-duration=1d --retain-acked-messages"
        " --min-retry-delay=5s --max-retry-delay=1m --max-delivery-attempts=7 --dead-letter-topic=dead"
        " --labels=a=b",
        '--message-filter=attributes.kind = "big"',
    )
    shown = gcloud("subscriptions describe billing")
    assert shown["topic"] == gcloud.name("topics", "orders")
    assert shown["retryPolicy"] == {"minimumBackoff": "5s", "maximumBackoff": "60s"}
    assert shown["deadLetterPolicy"] == {
        "deadLetterTopic": gcloud.name("topics", "dead"),
        "maxDeliveryAttempts": 7,
    }
    assert (shown["filter"], shown["labels"]) == ('attributes.kind = "big"', {"a": "b"})
    assert (shown["enableExactlyOnceDelivery"], shown["retainAckedMessages"]) == (True, True)
    assert (shown["ackDeadlineSeconds"], shown["expirationPolicy"]) == (20, {})

    gcloud("subscriptions update billing --ack-deadline=30 --clear-dead-letter-policy --clear-retry-policy")
    gcloud("subscriptions update billing --no-enable-exactly-once-delivery --no-retain-acked-messages")
    gcloud("subscriptions update billing --expiration-period=2d --update-labels=c=d")
    shown = gcloud("subscriptions describe billing")
    assert (shown["ackDeadlineSeconds"], shown["expirationPolicy"]) == (30, {"ttl": "172800s"})
    assert shown["labels"] == {"a": "b", "c": "d"}
    for gone in ("deadLetterPolicy", "retryPolicy", "enableExactlyOnceDelivery", "retainAckedMessages"):
        assert gone not in shown
    assert len(gcloud("subscriptions list")) == 1
    assert gcloud("topics list-subscriptions orders") == [gcloud.name("subscriptions", "billing")]
    gcloud("subscriptions modify-push-config billing", "--push-endpoint=")
    gcloud("topics detach-subscription billing")
    assert gcloud("subscriptions describe billing")["detached"] is True
    gcloud("subscriptions delete billing")
    with pytest.raises(Failed, match="Resource not found"):
        gcloud("subscriptions describe billing")


def test_snapshots(gcloud: Gcloud) -> None:
    gcloud("topics create orders")
    gcloud("subscriptions create billing --topic=orders")
    gcloud("topics publish orders --message=one")
    gcloud("snapshots create before --subscription=billing --labels=a=b")
    shown = gcloud("snapshots describe before")
    assert (shown["name"], shown["labels"]) == (gcloud.name("snapshots", "before"), {"a": "b"})
    (first,) = gcloud("subscriptions pull billing --auto-ack")
    gcloud("subscriptions seek billing --snapshot=before")
    (again,) = gcloud("subscriptions pull billing --auto-ack")
    assert again["message"]["messageId"] == first["message"]["messageId"]
    assert len(gcloud("snapshots list")) == 1
    gcloud("snapshots delete before")
    assert gcloud("snapshots list") == []


def test_policies(gcloud: Gcloud, tmp_path: Path) -> None:
    gcloud("topics create orders")
    gcloud("subscriptions create billing --topic=orders")
    for kind, leaf in (("topics", "orders"), ("subscriptions", "billing")):
        member, role = "--member=user:ann@example.com", "--role=roles/pubsub.viewer"
        gcloud(f"{kind} add-iam-policy-binding {leaf}", member, role)
        shown = gcloud(f"{kind} get-iam-policy {leaf}")
        assert shown["bindings"] == [{"role": "roles/pubsub.viewer", "members": ["user:ann@example.com"]}]
        gcloud(f"{kind} remove-iam-policy-binding {leaf}", member, role)
        file = tmp_path / "policy.json"
        shown = {"bindings": [{"role": "roles/pubsub.editor", "members": ["allUsers"]}]}
        file.write_text(json.dumps(shown))
        gcloud(f"{kind} set-iam-policy {leaf}", str(file))
        assert gcloud(f"{kind} get-iam-policy {leaf}")["bindings"] == shown["bindings"]


def test_schemas(gcloud: Gcloud) -> None:
    definition = '{"type": "record", "name": "Order", "fields": [{"name": "number", "type": "int"}]}'
    gcloud("schemas validate-schema --type=avro", f"--definition={definition}")
    gcloud("schemas create order --type=avro", f"--definition={definition}")
    shown = gcloud("schemas describe order")
    assert (shown["type"], json.loads(shown["definition"])) == ("AVRO", json.loads(definition))
    assert len(gcloud("schemas list")) == 1
    gcloud("schemas validate-message --message-encoding=json --schema-name=order", '--message={"number": 1}')
    with pytest.raises(Failed):
        gcloud("schemas validate-message --message-encoding=json --schema-name=order", "--message={}")
    gcloud("topics create orders --schema=order --message-encoding=json")
    gcloud("topics publish orders", '--message={"number": 1}')
    with pytest.raises(Failed):
        gcloud("topics publish orders --message=one")
    assert len(gcloud("schemas list-revisions order")) == 1
    gcloud("schemas delete order")
