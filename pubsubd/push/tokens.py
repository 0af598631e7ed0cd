"""Identity tokens of push requests, signed with a key of the server's own.

Whoever receives a push can check that it comes from this server: the token says for whom it is and who sent
it, and the public key is found at the JWKS address (wellknown.py). The key is made when the first token is,
and kept with everything else that is durable; no token leaves before its key is committed.

Source: PushConfig.OidcToken, https://cloud.google.com/pubsub/docs/authenticate-push-subscriptions (claims).
"""

from __future__ import annotations

import asyncio
from hashlib import blake2b, sha256

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from pubsubd.engine.engine import Engine
from pubsubd.model import limits

_ALGORITHM = "RS256"
_KEY_BITS = 2048
# Ids of the service's accounts are numbers of 21 digits that begin with a one.
_SUBJECT_DIGITS = 20


class Tokens:
    def __init__(self, engine: Engine, issuer: str) -> None:
        self._engine = engine
        self._issuer = issuer
        self._making = asyncio.Lock()
        self._key: rsa.RSAPrivateKey | None = None
        self._key_id = ""
        self._made: dict[tuple[str, str], tuple[str, int]] = {}  # with the second in which it was issued

    async def bearer(self, email: str, audience: str) -> str:
        """A token for `audience` in the name of `email`: one that was used before, while it is good.

        Raises:
            NotSettled: the key cannot be stored at present.
        """
        now_s = self._engine.now_us() // limits.SECOND_US
        token, issued_s = self._made.get((email, audience), ("", 0))
        if token and now_s < issued_s + limits.PUSH_TOKEN_SECONDS - limits.PUSH_TOKEN_LEFT_SECONDS_MIN:
            return token
        if self._key is None:
            await self._find_key()
        assert self._key is not None
        claims = claims_of(email, audience, self._issuer, now_s)
        token = jwt.encode(claims, self._key, _ALGORITHM, {"kid": self._key_id})
        self._made.pop((email, audience), None)
        self._made[email, audience] = token, now_s
        if len(self._made) > limits.PUSH_TOKENS_MAX:
            del self._made[next(iter(self._made))]
        return token

    async def _find_key(self) -> None:
        async with self._making:
            if self._key is not None:
                return
            pem = (await self._engine.broker()).push_key
            if not pem:
                # A tenth of a second of computing, which the loop must not stand still for.
                made = await asyncio.to_thread(new_key)
                broker = await self._engine.broker()
                if not broker.push_key:
                    broker.keep_push_key(made)
                pem = broker.push_key
            await self._engine.settled()
            self._key_id = key_id_of(pem)
            self._key = _private_key(pem)


def new_key() -> bytes:
    """A new signing key, in PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=_KEY_BITS)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def claims_of(email: str, audience: str, issuer: str, now_s: int) -> dict[str, object]:
    subject = subject_of(email)
    return {
        "aud": audience,
        "azp": subject,
        "email": email,
        "email_verified": True,
        "exp": now_s + limits.PUSH_TOKEN_SECONDS,
        "iat": now_s,
        "iss": issuer,
        "sub": subject,
    }


def subject_of(email: str) -> str:
    """The numeric id of a service account; here it follows from the address."""
    number = int.from_bytes(blake2b(email.encode(), digest_size=16).digest(), "big")
    return f"1{number % 10**_SUBJECT_DIGITS:0{_SUBJECT_DIGITS}d}"


def jwks(key: bytes) -> dict[str, list[dict[str, object]]]:
    """The public half of `key` as a JSON Web Key Set (RFC 7517); without a key none."""
    if not key:
        return {"keys": []}
    public = jwt.algorithms.RSAAlgorithm.to_jwk(_private_key(key).public_key(), as_dict=True)
    public = {name: public[name] for name in ("kty", "n", "e")}
    return {"keys": [{**public, "alg": _ALGORITHM, "use": "sig", "kid": key_id_of(key)}]}


def key_id_of(key: bytes) -> str:
    """Different for different keys."""
    public = _private_key(key).public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return sha256(der).hexdigest()[:40]


def _private_key(pem: bytes) -> rsa.RSAPrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key
