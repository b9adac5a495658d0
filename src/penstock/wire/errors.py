"""All errors of the client: the brokers' error codes, and below the errors of the client itself."""

from __future__ import annotations

# Public here, so that every error can be imported from this module.
from penstock.wire.broker_errors import *  # noqa: F403
from penstock.wire.broker_errors import KafkaError


class ConnectionLost(KafkaError):
    """The connection broke; it is not known whether the broker executed the last requests."""

    name = "CONNECTION_LOST"
    retriable = True
    refresh_metadata = True
    says = "the connection to the broker broke before it answered"


class RequestTimeout(KafkaError):
    """The broker did not answer in time; it is not known whether it executed the request."""

    name = "REQUEST_TIMEOUT"
    retriable = True
    refresh_metadata = True
    says = "the broker did not answer in time"


class DeliveryTimeout(KafkaError):
    """No broker confirmed the record within `delivery_timeout`; the record may have been written anyway."""

    name = "DELIVERY_TIMEOUT"
    says = "not confirmed within delivery_timeout; check that the brokers are up, or allow more time"


class UnsupportedBroker(KafkaError):
    """The broker and this client have no common version of a request."""

    name = "UNSUPPORTED_BROKER"
    says = "the broker is too old or too new for this client"


class ProducerClosed(KafkaError):
    """The producer was closed before or during the call."""

    name = "PRODUCER_CLOSED"
    says = "the producer is closed; create a new one"


class MalformedResponse(KafkaError):
    """The bytes are not the expected message; the connection cannot be used any more."""

    name = "MALFORMED_RESPONSE"
    says = "the bytes do not follow Kafka's protocol; is this the port of a broker, with the right security protocol?"


class AuthenticationFailed(KafkaError):
    """The broker refused the login, or did not prove its own identity."""

    name = "AUTHENTICATION_FAILED"
    says = "authentication failed; check the mechanism, the user and the secret"
