"""SASL authentication of a connection: PLAIN (RFC 4616), SCRAM-SHA-256 and -512 (RFC 5802), OAUTHBEARER (RFC 7628).

The client asks the broker for the mechanism (SaslHandshake), then sends each message in a SaslAuthenticate request
(KIP-152).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from penstock.border.public import public
from penstock.wire.errors import AuthenticationFailed
from penstock.wire.protocol import frames

if TYPE_CHECKING:
    from penstock.wire.broker_connection import BrokerConnection

Authenticate = Callable[["BrokerConnection"], Awaitable[None]]

LEAST_ITERATIONS = 4096
"""RFC 7677, section 4: with fewer iterations, an eavesdropper can guess the password cheaply."""
MOST_ITERATIONS = 16_384
"""The most that Kafka stores. The client computes them before the broker has proved anything."""

# server-first-message of RFC 5802, section 7: extensions may follow; a mandatory one, before the nonce, is unsupported.
CHALLENGE = re.compile(
    rb"r=(?P<nonce>[!-+\--~]+),s=(?P<salt>(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?),"
    rb"i=(?P<iterations>[1-9][0-9]{0,8})(?:,.*)?"
)


@public("wire.sasl.plain")
def plain(user: str, password: str) -> Authenticate:
    """User and password in clear text: use it only over TLS."""

    async def authenticate(connection: BrokerConnection) -> None:
        await _handshake(connection, "PLAIN")
        await _exchange(connection, f"\0{user}\0{password}".encode())

    return authenticate


@public("wire.sasl.oauth_bearer")
def oauth_bearer(token: Callable[[], Awaitable[str]]) -> Authenticate:
    """A bearer token; calls `token` for each connection."""

    async def authenticate(connection: BrokerConnection) -> None:
        bearer = await token()
        await _handshake(connection, "OAUTHBEARER")
        said = await _exchange(connection, f"n,,\x01auth=Bearer {bearer}\x01\x01".encode())
        if said:
            raise AuthenticationFailed(detail=f"{connection.peer} refused the token: {said.decode(errors='replace')}")

    return authenticate


@public("wire.sasl.scram")
def scram(user: str, password: str, *, digest: str = "sha512") -> Authenticate:
    """SCRAM: the password is never sent, and the broker proves that it knows it too.

    `digest` is "sha256" or "sha512"; another one raises ValueError.
    """
    if digest not in ("sha256", "sha512"):
        raise ValueError(f"{digest!r} is not a SCRAM digest; use sha256 or sha512")

    async def authenticate(connection: BrokerConnection) -> None:
        await _handshake(connection, f"SCRAM-SHA-{digest.removeprefix('sha')}")
        talk = Scram(user, password, digest, secrets.token_urlsafe(24))
        challenge = await _exchange(connection, talk.first())
        talk.check(await _exchange(connection, talk.final(challenge, connection.peer)), connection.peer)

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

    def final(self, challenge: bytes, peer: str) -> bytes:
        """The proof for the server's challenge `r=...,s=...,i=...`."""
        match = CHALLENGE.fullmatch(challenge)
        nonce = match["nonce"].decode() if match else ""
        if not match or not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise AuthenticationFailed(f"the SCRAM challenge of {peer} is not valid: {challenge!r}")
        salt, iterations = base64.b64decode(match["salt"]), int(match["iterations"])
        if iterations < LEAST_ITERATIONS:
            raise AuthenticationFailed(f"{peer} asks for {iterations} iterations, fewer than RFC 7677 allows")
        if iterations > MOST_ITERATIONS:
            raise AuthenticationFailed(
                f"{peer} asks for {iterations} iterations; Kafka stores at most {MOST_ITERATIONS}"
            )
        salted = hashlib.pbkdf2_hmac(self._digest, self._password, salt, iterations)
        client_key = self._mac(salted, b"Client Key")
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._bare},".encode() + challenge + f",{without_proof}".encode()
        signature = self._mac(hashlib.new(self._digest, client_key).digest(), message)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._expected = self._mac(self._mac(salted, b"Server Key"), message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes, peer: str) -> None:
        """Raises `AuthenticationFailed` unless the server proves that it knows the password."""
        if not hmac.compare_digest(answer, b"v=" + base64.b64encode(self._expected)):
            raise AuthenticationFailed(f"{peer} does not prove that it knows the password: {answer!r}")

    def _mac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._digest)


async def _handshake(connection: BrokerConnection, mechanism: str) -> None:
    response = await connection.ask(frames.SASL_HANDSHAKE, {"mechanism": mechanism})
    if response["error_code"]:
        raise AuthenticationFailed(
            detail=f"{connection.peer} does not support {mechanism}, only {', '.join(response['mechanisms']) or 'none'}"
        )


async def _exchange(connection: BrokerConnection, message: bytes) -> bytes:
    response = await connection.ask(frames.SASL_AUTHENTICATE, {"auth_bytes": message})
    if response["error_code"]:
        raise AuthenticationFailed(detail=f"{connection.peer}: {response['error_message'] or 'authentication failed'}")
    return bytes(response["auth_bytes"])
