"""Checks of a Publish request.

A request is refused as a whole, so the checks come before anything is stored, in a fixed order over all
messages: the first rule that any message breaks is the one reported.

Source: PublishRequest, PubsubMessage, https://cloud.google.com/pubsub/quotas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pubsubd.model import errors, limits, names
from pubsubd.wire import pb

# A character has at most four bytes, so a string this short cannot be too long.
_KEY_CHARS_SURE = limits.ATTRIBUTE_KEY_BYTES_MAX // 4
_VALUE_CHARS_SURE = limits.ATTRIBUTE_VALUE_BYTES_MAX // 4


def check_publish(request: pb.PublishRequest, request_bytes: int) -> None:
    """Refuse a Publish request that breaks a rule; `request_bytes` is its serialised size.

    Raises:
        InvalidArgument: the topic name, the number of messages, a size, or a message is wrong.
        FailedPrecondition: the messages differ in their ordering key.
    """
    names.check_topic(request.topic)
    messages = request.messages
    count = len(messages)
    if count < limits.PUBLISH_MESSAGE_COUNT_MIN:
        raise errors.too_small("message_count", count, limits.PUBLISH_MESSAGE_COUNT_MIN)
    if count > limits.PUBLISH_MESSAGE_COUNT_MAX:
        raise errors.too_large("message_count", count, limits.PUBLISH_MESSAGE_COUNT_MAX)
    if request_bytes > limits.PUBLISH_REQUEST_BYTES_MAX:
        raise errors.too_large("request_size", request_bytes, limits.PUBLISH_REQUEST_BYTES_MAX)
    if not _are_plainly_fine(messages):
        _check_messages(messages)


def _are_plainly_fine(messages: Sequence[pb.PubsubMessage]) -> bool:
    """Whether one quick look finds nothing that could be wrong; False means "look again", not "refuse".

    This runs for every message published. The rules themselves, in their order, are in `_check_messages`.
    """
    ordering_key = messages[0].ordering_key
    for message in messages:
        attributes = message.attributes
        if attributes:
            if len(attributes) > limits.ATTRIBUTE_COUNT_MAX:
                return False
            for key, value in attributes.items():
                if not 0 < len(key) <= _KEY_CHARS_SURE or len(value) > _VALUE_CHARS_SURE:
                    return False
        elif not message.data:
            return False
        if message.ordering_key != ordering_key:
            return False
    return len(ordering_key) <= limits.ORDERING_KEY_BYTES_MAX // 4


def _check_messages(messages: Sequence[pb.PubsubMessage]) -> None:
    """The rules on messages, one after the other, each over all messages."""
    attributes = [message.attributes for message in messages]
    if any(not some and not message.data for some, message in zip(attributes, messages, strict=True)):
        raise errors.empty_message()
    for some in attributes:
        if len(some) > limits.ATTRIBUTE_COUNT_MAX:
            raise errors.too_large("attribute_count", len(some), limits.ATTRIBUTE_COUNT_MAX)
    for some in attributes:
        _check_attribute_keys(some)
    for some in attributes:
        _check_attribute_values(some)
    ordering_keys = {message.ordering_key for message in messages}
    for ordering_key in ordering_keys:
        key_bytes = len(ordering_key.encode())
        if key_bytes > limits.ORDERING_KEY_BYTES_MAX:
            raise errors.bad_argument(
                "messages.ordering_key",
                f"it has {key_bytes} bytes, the maximum is {limits.ORDERING_KEY_BYTES_MAX}",
            )
    if len(ordering_keys) > 1:
        raise errors.mixed_ordering_keys()


def _check_attribute_keys(attributes: Mapping[str, str]) -> None:
    # Sorted, so that the key named in a refusal does not depend on the order inside a protobuf map.
    for key in sorted(attributes):
        if not key:
            raise errors.empty_attribute_key()
        key_bytes = len(key.encode())
        if key_bytes > limits.ATTRIBUTE_KEY_BYTES_MAX:
            raise errors.attribute_key_too_long(key, key_bytes)


def _check_attribute_values(attributes: Mapping[str, str]) -> None:
    for key, value in sorted(attributes.items()):
        value_bytes = len(value.encode())
        if value_bytes > limits.ATTRIBUTE_VALUE_BYTES_MAX:
            raise errors.attribute_value_too_long(key, value_bytes)
