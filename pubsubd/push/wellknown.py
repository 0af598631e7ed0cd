"""What verifiers of push tokens ask for: the public key, and where it is. A pure function of a path.

Source: OpenID Connect Discovery 1.0, RFC 7517.
"""

from __future__ import annotations

import json

JWKS_PATH = "/.well-known/jwks.json"
DISCOVERY_PATH = "/.well-known/openid-configuration"


def answer(path: str, key: bytes, issuer: str, base_url: str) -> bytes | None:
    """The JSON at `path`, or None if nothing of ours is there.

    `key` is `Engine.push_key`, `base_url` the address that the request came to, such as
    `http://localhost:8085`.
    """
    found: dict[str, object]
    if path == JWKS_PATH:
        # With a library that nobody waits for who pushes without tokens.
        from pubsubd.push.tokens import jwks

        found = {**jwks(key)}
    elif path == DISCOVERY_PATH:
        found = {
            "issuer": issuer,
            "jwks_uri": f"{base_url}{JWKS_PATH}",
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
            "claims_supported": ["aud", "azp", "email", "email_verified", "exp", "iat", "iss", "sub"],
        }
    else:
        return None
    return json.dumps(found).encode()
