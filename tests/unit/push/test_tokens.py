"""Tokens of push requests: what they say, how long they are used, and that the public key verifies them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable

import jwt
import pytest
from aiohttp import web

from pubsubd.broker import Broker
from pubsubd.engine.engine import NotSettled
from pubsubd.model import limits
from pubsubd.push import tokens as tokens_module
from pubsubd.push import wellknown
from pubsubd.push.tokens import Tokens, jwks, key_id_of, new_key, subject_of

EMAIL, AUDIENCE, ISSUER = "pusher@project.iam.gserviceaccount.com", "https://x.test/push", "https://me.test"
NOW_S = 1_900_000_000


class Engine:
    """As much of the engine as tokens need, with a clock that stands still."""

    def __init__(self) -> None:
        self.core = Broker(b"s" * 32, 1, False)
        self.now_s = NOW_S
        self.fails = False
        self.settled_count = 0

    def now_us(self) -> int:
        return self.now_s * limits.SECOND_US + 999

    async def broker(self) -> Broker:
        return self.core

    async def settled(self) -> None:
        await asyncio.sleep(0)
        if self.fails:
            self.core = Broker(b"s" * 32, 1, False)
            raise NotSettled("the commit failed")
        self.settled_count += 1


def made(engine: Engine) -> Tokens:
    return Tokens(engine, ISSUER)  # type: ignore[arg-type]  # stands in for the real one


def verified(token: str, key: bytes, audience: str = AUDIENCE) -> dict[str, object]:
    keys = jwt.PyJWKSet.from_dict(json.loads(json.dumps(jwks(key))))
    signing = keys[jwt.get_unverified_header(token)["kid"]]
    options = {"verify_exp": False, "verify_iat": False}
    claims: dict[str, object] = jwt.decode(
        token, signing.key, ["RS256"], options, audience=audience, issuer=ISSUER
    )
    return claims


async def test_a_token_says_who_sends_what_to_whom() -> None:
    engine = Engine()
    token = await made(engine).bearer(EMAIL, AUDIENCE)

    assert jwt.get_unverified_header(token) == {
        "alg": "RS256",
        "kid": key_id_of(engine.core.push_key),
        "typ": "JWT",
    }
    subject = subject_of(EMAIL)
    assert verified(token, engine.core.push_key) == {
        "aud": AUDIENCE,
        "azp": subject,
        "email": EMAIL,
        "email_verified": True,
        "exp": NOW_S + 3600,
        "iat": NOW_S,
        "iss": ISSUER,
        "sub": subject,
    }


async def test_a_token_of_another_key_is_not_verified() -> None:
    token = await made(Engine()).bearer(EMAIL, AUDIENCE)

    with pytest.raises(jwt.PyJWTError):
        jwt.decode(token, jwt.PyJWK(jwks(new_key())["keys"][0]).key, ["RS256"], audience=AUDIENCE)


def test_a_subject_is_a_number_that_stays_the_same() -> None:
    assert subject_of(EMAIL) == subject_of(EMAIL) != subject_of("other@x.test")
    assert subject_of(EMAIL).isdigit() and len(subject_of(EMAIL)) == 21


async def test_a_token_is_used_again_while_it_is_good() -> None:
    engine = Engine()
    tokens = made(engine)
    first = await tokens.bearer(EMAIL, AUDIENCE)
    engine.now_s += 3299
    assert await tokens.bearer(EMAIL, AUDIENCE) == first
    assert await tokens.bearer(EMAIL, "another") != first
    engine.now_s += 1

    second = await tokens.bearer(EMAIL, AUDIENCE)
    assert verified(second, engine.core.push_key)["iat"] == NOW_S + 3300


async def test_the_key_is_made_once_and_stored_before_a_token_leaves() -> None:
    engine = Engine()
    tokens = made(engine)
    await asyncio.gather(*[tokens.bearer(EMAIL, str(n)) for n in range(5)])
    key = engine.core.push_key

    assert engine.settled_count == 1
    token = await made(engine).bearer(EMAIL, AUDIENCE)  # as after a restart
    assert engine.core.push_key == key
    assert verified(token, key)


async def test_no_token_is_signed_with_a_key_that_was_not_stored() -> None:
    engine = Engine()
    tokens = made(engine)
    engine.fails = True
    with pytest.raises(NotSettled):
        await tokens.bearer(EMAIL, AUDIENCE)
    assert engine.core.push_key == b""

    engine.fails = False
    assert verified(await tokens.bearer(EMAIL, AUDIENCE), engine.core.push_key)


async def test_tokens_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PUSH_TOKENS_MAX", 2)
    tokens = made(Engine())
    for n in range(4):
        await tokens.bearer(EMAIL, str(n))

    assert list(tokens._made) == [(EMAIL, "2"), (EMAIL, "3")]


def test_without_a_key_the_set_is_empty() -> None:
    assert jwks(b"") == {"keys": []}


def test_the_set_holds_nothing_private() -> None:
    (key,) = jwks(new_key())["keys"]

    assert key.keys() == {"kty", "n", "e", "alg", "use", "kid"}


Serve = Callable[[bytes], Awaitable[str]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """An HTTP server that answers what `wellknown` does; gives its address."""
    runners = []

    async def start(key: bytes) -> str:
        async def handle(request: web.Request) -> web.Response:
            body = wellknown.answer(request.path, key, ISSUER, f"http://{request.host}")
            if body is None:
                raise web.HTTPNotFound
            return web.Response(body=body, content_type="application/json")

        app = web.Application()
        app.router.add_get("/{tail:.*}", handle)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield start
    for runner in runners:
        await runner.cleanup()


async def test_a_receiver_verifies_a_token_by_the_jwks_address(serve: Serve) -> None:
    engine = Engine()
    token = await made(engine).bearer(EMAIL, AUDIENCE)
    address = await serve(engine.core.push_key)

    def verify() -> object:
        client = jwt.PyJWKClient(f"{address}{wellknown.JWKS_PATH}")
        key = client.get_signing_key_from_jwt(token)
        options = {"verify_iat": False}
        return jwt.decode(token, key.key, ["RS256"], options, audience=AUDIENCE, issuer=ISSUER)["email"]

    assert await asyncio.to_thread(verify) == EMAIL


def test_discovery_names_issuer_and_keys_and_other_paths_are_not_ours() -> None:
    found = json.loads(
        wellknown.answer(wellknown.DISCOVERY_PATH, b"", ISSUER, "http://localhost:8085") or b""
    )

    assert found["issuer"] == ISSUER
    assert found["jwks_uri"] == "http://localhost:8085/.well-known/jwks.json"
    assert wellknown.answer("/v1/projects", b"", ISSUER, "http://localhost:8085") is None
    assert wellknown.answer(wellknown.JWKS_PATH, b"", ISSUER, "") == b'{"keys": []}'
    assert tokens_module.jwks is jwks
