"""SASL authentication of a connection: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802), OAUTHBEARER (RFC 7628).

The broker is asked for the mechanism (SaslHandshake), then each message goes in a SaslAuthenticate request (KIP-152).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.wire import protocol
from penstock.wire.errors import AuthenticationFailed

if TYPE_CHECKING:
    from penstock.wire.connection import Connection

Authenticate = Callable[["Connection"], Awaitable[None]]

LEAST_ITERATIONS = 4096
"""RFC 7677, section 4: fewer make the password cheap to guess for whoever listens."""


def plain(user: str, password: str) -> Authenticate:
    """User and password in clear text: only over TLS."""

    async def authenticate(connection: Connection) -> None:
        await _handshake(connection, "PLAIN")
        await _exchange(connection, f"\0{user}\0{password}".encode())

    return authenticate


def oauth_bearer(token: Callable[[], Awaitable[str]]) -> Authenticate:
    """A token, asked of `token` for each connection."""

    async def authenticate(connection: Connection) -> None:
        bearer = await token()
        await _handshake(connection, "OAUTHBEARER")
        said = await _exchange(connection, f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())
        if said:
            raise AuthenticationFailed(detail=f"{connection.peer} refused the token: {said.decode(errors='replace')}")

    return authenticate


def scram(user: str, password: str, *, digest: str = "sha512") -> Authenticate:
    """A password that never travels; the broker proves that it knows it too. `digest` is "sha256" or "sha512"."""
    if digest not in ("sha256", "sha512"):
        raise ValueError(f"{digest!r} is no digest of SCRAM; use sha256 or sha512")

    async def authenticate(connection: Connection) -> None:
        await _handshake(connection, f"SCRAM-SHA-{digest.removeprefix('sha')}")
        talk = Scram(user, password, digest, secrets.token_urlsafe(24))
        challenge = await _exchange(connection, talk.first())
        talk.check(await _exchange(connection, talk.final(challenge.decode())), connection.peer)

    return authenticate


class Scram:
    """The client's side of one exchange; without channel binding."""

    def __init__(self, user: str, password: str, digest: str, nonce: str) -> None:
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare, self._nonce = f"n={name},r={nonce}", nonce
        self._password, self._digest = password.encode(), digest
        self._expected = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, challenge: str) -> bytes:
        """The proof for the server's challenge `r=...,s=...,i=...`."""
        said = dict(part.split("=", 1) for part in challenge.split(",") if "=" in part)
        nonce, salt, iterations = said.get("r", ""), said.get("s", ""), said.get("i", "")
        if not nonce.startswith(self._nonce) or nonce == self._nonce or not iterations.isdigit():
            raise AuthenticationFailed(detail=f"the broker's SCRAM challenge is none: {challenge!r}")
        if int(iterations) < LEAST_ITERATIONS:
            raise AuthenticationFailed(
                detail=f"the broker asks for {iterations} iterations, fewer than RFC 7677 allows"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, base64.b64decode(salt), int(iterations))
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},{challenge},{without_proof}".encode()
        signature = self._mac(hashlib.new(self._digest, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes, peer: str) -> None:
        """Whether the server knew the password as well."""
        said = answer.decode()
        if not said.startswith("v=") or not hmac.compare_digest(base64.b64decode(said[2:]), self._expected):
            raise AuthenticationFailed(detail=f"{peer} does not prove that it knows the password: {said!r}")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


async def _handshake(connection: Connection, mechanism: str) -> None:
    found = await connection.ask(protocol.SASL_HANDSHAKE, {"mechanism": mechanism})
    if found["error_code"]:
        raise AuthenticationFailed(
            detail=f"{connection.peer} does not speak {mechanism}; it speaks {', '.join(found['mechanisms']) or 'none'}"
        )


async def _exchange(connection: Connection, message: bytes) -> bytes:
    found = await connection.ask(protocol.SASL_AUTHENTICATE, {"auth_bytes": message})
    if found["error_code"]:
        raise AuthenticationFailed(detail=f"{connection.peer}: {found['error_message'] or 'authentication failed'}")
    return bytes(found["auth_bytes"])
