"""All errors of the client: those of the brokers' codes, and below those that arise on our side of the connection."""

from __future__ import annotations

# The names of the table are public here: one place to import every error from.
from penstock.wire.broker_errors import *  # noqa: F403
from penstock.wire.broker_errors import KafkaError


class ConnectionLost(KafkaError):
    """The connection broke; whether the broker took the last requests is not known."""

    name = "CONNECTION_LOST"
    retriable = True
    refresh_metadata = True
    says = "the connection to the broker broke before it answered"


class RequestTimeout(KafkaError):
    """The broker did not answer in time; whether it took the request is not known."""

    name = "REQUEST_TIMEOUT"
    retriable = True
    refresh_metadata = True
    says = "the broker did not answer in time"


class DeliveryTimeout(KafkaError):
    """The record's time was over before a broker confirmed it; it may have been written all the same."""

    name = "DELIVERY_TIMEOUT"
    says = "not confirmed within delivery_timeout; check that the brokers are up, or allow more time"


class UnsupportedBroker(KafkaError):
    """The broker and we have no version of a request in common."""

    name = "UNSUPPORTED_BROKER"
    says = "the broker is too old or too new for this client"


class ProducerClosed(KafkaError):
    """The producer was closed before, or while, this was asked."""

    name = "PRODUCER_CLOSED"
    says = "the producer is closed; make a new one"


class MalformedResponse(KafkaError):
    """The bytes are not those of the message that was expected; the connection cannot be used any further."""

    name = "MALFORMED_RESPONSE"
    says = "the bytes do not follow Kafka's protocol; is this the port of a broker, with the right security protocol?"


class AuthenticationFailed(KafkaError):
    """The broker did not let us in, or did not prove that it is the one."""

    name = "AUTHENTICATION_FAILED"
    says = "authentication failed; check the mechanism, the user and the secret"
