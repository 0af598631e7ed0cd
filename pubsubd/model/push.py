"""Push: the rules on its configuration, what the server fills in, and the request that a message becomes.

Without an endpoint a configuration means nothing, whatever else it holds, and the subscription is pulled.

A wrapped request carries the message as JSON, with the attribute names in the alphabetical order that makes
one message one text. An unwrapped one carries its bytes and, if that is asked for, the rest as headers; what
cannot be a header, or would change how the request itself is read, stays out.

Source: PushConfig, https://cloud.google.com/pubsub/docs/push,
https://cloud.google.com/pubsub/docs/payload-unwrapping.
"""

from __future__ import annotations

import json
import re
from binascii import b2a_base64
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from pubsubd.model import errors
from pubsubd.wire import pb

VERSION_ATTRIBUTE: Final = "x-goog-version"
_VERSION_DEFAULT: Final = "v1"
_VERSIONS: Final = ("v1", "v1beta1", "v1beta2")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_URL: Final = re.compile(
    r"(?i:https?)://"
    r"(?:[^/?#@]*@)?"
    r"(?P<host>(?:\[[0-9A-Fa-f:.]+\]|[^/?#@:\[\]]+)"
    r"(?::(?P<port>[0-9]{1,5}))?)"
    r"(?:[/?#].*)?"
)
_PORT_MAX: Final = 65_535


def check_push_config(config: pb.PushConfig) -> None:
    """Refuse a push configuration that breaks a rule.

    Raises:
        InvalidArgument: naming the endpoint, the version or the field.
    """
    if not config.push_endpoint:
        return
    if not _is_http_url(config.push_endpoint):
        raise errors.bad_push_endpoint(config.push_endpoint)
    version = config.attributes.get(VERSION_ATTRIBUTE, _VERSION_DEFAULT)
    if version not in _VERSIONS:
        raise errors.bad_push_version(version)
    if config.HasField("oidc_token") and not _EMAIL.fullmatch(config.oidc_token.service_account_email):
        raise errors.bad_argument("PushConfig::oidc_token::service_account_email")


def _is_http_url(url: str) -> bool:
    # The real service wants https. People push to a server on their own machine here, so http is fine.
    # What is not printable ASCII has to be percent-encoded in a URL.
    if not (url.isascii() and url.isprintable()) or " " in url:
        return False
    found = _URL.fullmatch(url)
    return found is not None and (found["port"] is None or 1 <= int(found["port"]) <= _PORT_MAX)


def keep_version(config: pb.PushConfig, before: pb.PushConfig) -> None:
    """A change that does not name the version leaves it as it was.

    Source: PushConfig.attributes (x-goog-version).
    """
    if VERSION_ATTRIBUTE not in config.attributes and VERSION_ATTRIBUTE in before.attributes:
        config.attributes[VERSION_ATTRIBUTE] = before.attributes[VERSION_ATTRIBUTE]


def settle(config: pb.PushConfig) -> None:
    """Fill what a client sees of a push configuration that has an endpoint, and empty one that has none."""
    if not config.push_endpoint:
        config.Clear()
        return
    if VERSION_ATTRIBUTE not in config.attributes:
        config.attributes[VERSION_ATTRIBUTE] = _VERSION_DEFAULT
    # Not documented for replies; a client that reads the choice gets the one that is in force.
    if config.WhichOneof("wrapper") is None:
        config.pubsub_wrapper.SetInParent()


# --- the request -----------------------------------------------------------------------------------------

#: The statuses that acknowledge. All others are a nack, whatever their class.
ACKNOWLEDGING: Final = frozenset({102, 200, 201, 202, 204})

_JSON_TYPE: Final = "application/json"
# Not documented, nor observed; the emulator sends what its HTTP library sends.
_BYTES_TYPE: Final = "application/octet-stream"
_HEADERS: Final = (
    # As observed in access logs of endpoints; software that tells pushes apart looks for them.
    ("User-Agent", "APIs-Google; (+https://developers.google.com/webmasters/APIs-Google.html)"),
    ("From", "noreply@google.com"),
    ("Accept", "application/json"),
    ("Accept-Encoding", "gzip, deflate, br"),
)
_METADATA: Final = "x-goog-pubsub-"
#: What says where a request ends, where it goes, or who sends it is not for publishers to say.
_NOT_FROM_ATTRIBUTES: Final = frozenset(
    {
        *("authorization", "connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class PushRequest(NamedTuple):
    """What is sent by POST, beside what HTTP itself and authentication add."""

    headers: list[tuple[str, str]]
    body: bytes


class PushForm:
    """How the messages of one subscription look, by its name and its push configuration."""

    def __init__(self, subscription: str, config: pb.PushConfig) -> None:
        self._subscription = subscription
        self._tail = f',"subscription":{_json(subscription)}'
        self._is_wrapped = config.WhichOneof("wrapper") != "no_wrapper"
        self._writes_metadata = config.no_wrapper.write_metadata
        content_type = _JSON_TYPE if self._is_wrapped else _BYTES_TYPE
        self._headers = [("Content-Type", content_type), *_HEADERS]

    def request(self, data: bytes, attempt: int | None) -> PushRequest:
        """The request of a message as it is stored; `attempt` is None without a dead letter policy."""
        message = pb.PubsubMessage.FromString(data)
        if self._is_wrapped:
            return PushRequest(self._headers, self._wrapped(message, attempt))
        return PushRequest(self._unwrapped_headers(message), message.data)

    def _wrapped(self, message: pb.PubsubMessage, attempt: int | None) -> bytes:
        # Written by hand: a tenth of what it costs to make dictionaries and have them written.
        fields = []
        if message.attributes:
            attributes = message.attributes
            fields.append(f'"attributes":{_json({key: attributes[key] for key in sorted(attributes)})}')
        if message.data:
            fields.append(f'"data":"{b2a_base64(message.data, newline=False).decode()}"')
        message_id, time = message.message_id, _time_text(message.publish_time)
        fields.append(f'"messageId":"{message_id}","message_id":"{message_id}"')
        if message.ordering_key:
            fields.append(f'"orderingKey":{_json(message.ordering_key)}')
        fields.append(f'"publishTime":"{time}","publish_time":"{time}"')
        end = "}" if attempt is None else f',"deliveryAttempt":{attempt}}}'
        return f'{{"message":{{{",".join(fields)}}}{self._tail}{end}'.encode()

    def _unwrapped_headers(self, message: pb.PubsubMessage) -> list[tuple[str, str]]:
        if not self._writes_metadata:
            return self._headers
        written = [
            (f"{_METADATA}subscription-name", self._subscription),
            (f"{_METADATA}message-id", message.message_id),
            (f"{_METADATA}publish-time", _time_text(message.publish_time)),
        ]
        if message.ordering_key and _is_header_value(message.ordering_key):
            written.append((f"{_METADATA}ordering-key", message.ordering_key))
        metadata = {name for name, _ in written}
        written += [
            (key, message.attributes[key])
            for key in sorted(message.attributes)
            if _is_header(key, message.attributes[key]) and key.lower() not in metadata
        ]
        replaced = {name.lower() for name, _ in written}
        return [header for header in self._headers if header[0].lower() not in replaced] + written


def endpoint_host(endpoint: str) -> str:
    """Host and port of a valid endpoint, by which the journal knows it."""
    found = _URL.fullmatch(endpoint)
    assert found is not None, endpoint
    return found["host"]


def _is_header(name: str, value: str) -> bool:
    return (
        _HEADER_NAME.fullmatch(name) is not None
        and name.lower() not in _NOT_FROM_ATTRIBUTES
        and _is_header_value(value)
    )


def _is_header_value(value: str) -> bool:
    return _CONTROL.search(value) is None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _time_text(time: pb.Timestamp) -> str:
    """`2026-11-21T09:30:00.123Z`: three digits, the rest cut off and not rounded."""
    moment = _EPOCH + timedelta(seconds=time.seconds, microseconds=time.nanos // 1000)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
