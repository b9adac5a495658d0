"""SCRAM's client side against the examples of RFC 5802 and RFC 7677, and against servers that cheat."""

from __future__ import annotations

import pytest

from penstock.wire.errors import AuthenticationFailed
from penstock.wire.sasl import Scram, scram

NONCE = "rOprNGfwEbeRWgbNEkqO"
CHALLENGE = f"r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
PROVEN = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("digest", "nonce", "challenge", "proof", "proven"),
    [
        (
            "sha1",  # RFC 5802, section 5
            "fyko+d2lbbFgONRv9qkxdawL",
            "r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,s=QSXCR+Q6sek8bf92,i=4096",
            "c=biws,r=fyko+d2lbbFgONRv9qkxdawL3rfcNHYJY1ZVvWVs7j,p=v0X8v3Bz2T0CJGbJQyF0X+HI4Ts=",
            b"v=rmF9pqV8S7suAoZWja4dJRkFsKQ=",
        ),
        (
            "sha256",  # RFC 7677, section 3
            NONCE,
            CHALLENGE,
            f"c=biws,r={NONCE}%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=",
            PROVEN,
        ),
    ],
)
def test_the_examples_of_the_rfcs(digest: str, nonce: str, challenge: str, proof: str, proven: bytes) -> None:
    talk = Scram("user", "pencil", digest, nonce)
    assert talk.first() == f"n,,n=user,r={nonce}".encode()
    assert talk.final(challenge.encode(), "broker") == proof.encode()
    talk.check(proven, "broker")


def test_a_name_may_have_commas_and_equal_signs() -> None:
    assert Scram("a=b,c", "", "sha256", "n").first() == b"n,,n=a=3Db=2Cc,r=n"


@pytest.mark.parametrize(
    "challenge",
    [
        b"",
        b"\xff",
        CHALLENGE.replace(NONCE, "another").encode(),
        f"r={NONCE},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096".encode(),
        CHALLENGE.replace("4096", "many").encode(),
        CHALLENGE.replace("4096", "²").encode(),
        CHALLENGE.replace("==", "").encode(),
        f"m=later,{CHALLENGE}".encode(),
    ],
)
def test_a_challenge_that_is_none_names_the_broker(challenge: bytes) -> None:
    with pytest.raises(AuthenticationFailed, match="the SCRAM challenge of broker is not valid"):
        Scram("user", "pencil", "sha256", NONCE).final(challenge, "broker")


def test_a_password_is_not_given_away_cheaply() -> None:
    with pytest.raises(AuthenticationFailed, match="broker asks for 1 iterations, fewer than RFC 7677 allows"):
        Scram("user", "pencil", "sha256", NONCE).final(CHALLENGE.replace("4096", "1").encode(), "broker")


@pytest.mark.parametrize("iterations", ["16385", "999999999"])
def test_a_broker_does_not_have_the_client_compute_for_minutes(iterations: str) -> None:
    talk = Scram("user", "pencil", "sha256", NONCE)
    with pytest.raises(
        AuthenticationFailed, match=f"broker asks for {iterations} iterations; Kafka stores at most 16384"
    ):
        talk.final(CHALLENGE.replace("4096", iterations).encode(), "broker")


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=x", b"e=other-error", b"\xff", PROVEN.replace(b"6rri", b"6rrj")])
def test_a_broker_that_does_not_know_the_password_is_left(answer: bytes) -> None:
    talk = Scram("user", "pencil", "sha256", NONCE)
    talk.final(CHALLENGE.encode(), "broker")
    with pytest.raises(AuthenticationFailed, match="broker does not prove that it knows the password"):
        talk.check(answer, "broker")


def test_a_weak_digest_is_refused() -> None:
    with pytest.raises(ValueError, match="'md5' is not a SCRAM digest; use sha256 or sha512"):
        scram("user", "pencil", digest="md5")
