"""Push configuration: the rules on its fields, and what the server fills in.

Without an endpoint a configuration means nothing, whatever else it holds, and the subscription is pulled.

Source: PushConfig, https://cloud.google.com/pubsub/docs/push.
"""

from __future__ import annotations

import re
from typing import Final

from pubsubd.model import errors
from pubsubd.wire import pb

VERSION_ATTRIBUTE: Final = "x-goog-version"
_VERSION_DEFAULT: Final = "v1"
_VERSIONS: Final = ("v1", "v1beta1", "v1beta2")
_EMAIL: Final = re.compile(r"[^@\s]+@[^@\s]+")
_URL: Final = re.compile(
    r"(?i:https?)://"
    r"(?:[^/?#@]*@)?"
    r"(?:\[[0-9A-Fa-f:.]+\]|[^/?#@:\[\]]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
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
