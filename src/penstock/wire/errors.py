"""All errors of the client: one class for each error code of Kafka 4.3, and below the errors of the client itself.

`_final` errors repeat when the request is sent again; `_again` errors may pass; after `_moved` errors the client reads
the cluster's metadata before it tries again. Codes and flags are those of the protocol guide, section "Error Codes",
and of Java's client; the sentences are ours: what the error means and what to do.
"""

from __future__ import annotations

import re
from typing import Any

CODES: dict[int, type[KafkaError]] = {}


class KafkaError(Exception):
    """A request to Kafka failed; `retriable` is true if the same request may succeed later.

    `refresh_metadata` is true if the client's metadata about topics and leaders is out of date. `code` is 0 for errors
    that no broker sent. `next` is what to do, where the text does not say it.
    """

    code: int = 0
    name: str = ""
    retriable: bool = False
    refresh_metadata: bool = False
    says: str = ""
    next: str = ""

    def __init__(self, detail: str = "", *, topic: str | None = None, partition: int | None = None) -> None:
        super().__init__(detail, topic, partition)
        self.detail, self.topic, self.partition = detail, topic, partition

    def __str__(self) -> str:
        places = {"topic": self.topic, "partition": self.partition}
        where = ", ".join(f"{kind} {place}" for kind, place in places.items() if place is not None)
        head = f"{self.name}{f' ({where})' if where else ''}".lstrip()
        return ": ".join(filter(None, (head, self.says, self.detail)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.code or type(self), self.detail, self.topic, self.partition)


def error_of(code: int) -> type[KafkaError]:
    """The class of a broker's error code; for an unknown code a subclass of `UnknownServerError` with the number."""
    if code not in CODES:
        says = f"the broker answered with error code {code}, which this client does not know; see the broker's log"
        body = {"code": code, "name": f"ERROR_{code}", "says": says, "__module__": __name__}
        CODES[code] = type(f"Error{code}", (UnknownServerError,), body)
    return CODES[code]


def _rebuilt(kind: int | type[KafkaError], detail: str, topic: str | None, partition: int | None) -> KafkaError:
    return (error_of(kind) if isinstance(kind, int) else kind)(detail, topic=topic, partition=partition)


def _final(code: int, says: str, name: str = "", retriable: bool = False, refresh: bool = False) -> type[KafkaError]:
    body = {"code": code, "name": name, "says": says, "retriable": retriable, "refresh_metadata": refresh}
    CODES[code] = type("", (KafkaError,), body | {"__module__": __name__, "__doc__": says})
    return CODES[code]


def _again(code: int, says: str) -> type[KafkaError]:
    return _final(code, says, retriable=True)


def _moved(code: int, says: str) -> type[KafkaError]:
    return _final(code, says, retriable=True, refresh=True)


UnknownServerError = _final(-1, "the broker failed with an unexpected error; see its log")
OffsetOutOfRange = _final(1, "the partition does not have this offset; start from its beginning or end")
CorruptMessage = _again(2, "the records arrived damaged, or have no key, which a compacted topic needs")
UnknownTopicOrPartition = _moved(
    3, "the broker does not know this topic or partition (yet); create it, or check the name"
)
InvalidFetchSize = _final(4, "the fetch size is negative or too large")
LeaderNotAvailable = _moved(5, "the partition is electing a leader")
NotLeaderOrFollower = _moved(6, "the partition's leader has moved to another broker")
RequestTimedOut = _again(7, "the broker did not finish in the time the request allowed")
BrokerNotAvailable = _final(8, "the broker is not available")
ReplicaNotAvailable = _moved(9, "the replica is not on this broker")
MessageTooLarge = _final(
    10, "a record is larger than the topic allows; raise its max.message.bytes, or message.max.bytes of all brokers"
)
StaleControllerEpoch = _final(11, "the controller has moved to another broker")
OffsetMetadataTooLarge = _final(12, "the metadata of the committed offset is too large; shorten it")
NetworkException = _moved(13, "the broker closed the connection before it answered")
CoordinatorLoadInProgress = _again(14, "the coordinator is still loading its log")
CoordinatorNotAvailable = _again(15, "the coordinator is not available yet")
NotCoordinator = _again(16, "the coordinator has moved to another broker")
InvalidTopic = _final(
    17, "not a valid topic name, or an internal topic's name; choose another name", name="INVALID_TOPIC_EXCEPTION"
)
RecordListTooLarge = _final(18, "the batch is larger than a log segment; send smaller batches")
NotEnoughReplicas = _again(19, "too few in-sync replicas for acks=all; nothing was written")
NotEnoughReplicasAfterAppend = _again(20, "written, but to fewer in-sync replicas than acks=all needs")
InvalidRequiredAcks = _final(21, "the broker does not support these acks; give 0, 1 or all")
IllegalGeneration = _final(22, "the group has another generation now; rejoin it")
InconsistentGroupProtocol = _final(23, "the group's members have no assignor in common")
InvalidGroupId = _final(24, "the group id is empty or not allowed")
UnknownMemberId = _final(25, "the group does not know this member; rejoin it")
InvalidSessionTimeout = _final(26, "the session timeout is outside the broker's limits")
RebalanceInProgress = _final(27, "the group is rebalancing; rejoin it")
InvalidCommitOffsetSize = _final(28, "the committed offset's data is too large")
TopicAuthorizationFailed = _final(29, "not allowed on this topic; grant the user an ACL for it")
GroupAuthorizationFailed = _final(30, "not allowed in this group; grant the user an ACL for it")
ClusterAuthorizationFailed = _final(31, "not allowed on this cluster; grant the user an ACL for it")
InvalidTimestamp = _final(
    32, "the topic does not allow this timestamp; check this clock and the topic's message.timestamp.*"
)
UnsupportedSaslMechanism = _final(33, "the broker does not offer this SASL mechanism; choose one of its mechanisms")
IllegalSaslState = _final(34, "the request does not fit the state of the SASL exchange; does this port use SASL?")
UnsupportedVersion = _final(
    35, "the broker does not support this version of the request, or a feature that it needs; update the older side"
)
TopicAlreadyExists = _final(36, "a topic with this name exists")
InvalidPartitions = _final(37, "the number of partitions is not allowed: below 1, or below the current number")
InvalidReplicationFactor = _final(38, "the replication factor is below 1 or above the number of brokers")
InvalidReplicaAssignment = _final(39, "the assignment of replicas to brokers is not valid")
InvalidConfig = _final(40, "a configuration value is not valid; check its name and value")
NotController = _again(41, "this broker is no longer the controller")
InvalidRequest = _final(42, "the broker rejected the request as malformed; see its log")
UnsupportedForMessageFormat = _final(43, "the topic's message format is too old for this request; upgrade it")
PolicyViolation = _final(44, "a policy of the cluster forbids it; ask the cluster's operator")
OutOfOrderSequenceNumber = _final(45, "earlier batches are missing; order cannot be kept")
DuplicateSequenceNumber = _final(46, "the broker has written this batch before")
InvalidProducerEpoch = _final(
    47, "a newer producer replaced this one, or its transaction timed out; create a new producer"
)
InvalidTxnState = _final(48, "the transaction's state does not allow this; abort it, then begin another")
InvalidProducerIdMapping = _final(
    49, "the producer id does not belong to the transactional id (any more); initialise again"
)
InvalidTransactionTimeout = _final(50, "the timeout exceeds the broker's transaction.max.timeout.ms; lower it")
ConcurrentTransactions = _again(51, "the previous transaction is still being completed")
TransactionCoordinatorFenced = _final(52, "the transaction coordinator has been replaced by another one")
TransactionalIdAuthorizationFailed = _final(53, "not allowed to use this transactional id; grant an ACL for it")
SecurityDisabled = _final(54, "the cluster runs without security features; it cannot store ACLs")
OperationNotAttempted = _final(55, "not attempted, because another part of the request failed")
KafkaStorageError = _moved(56, "the broker's disk failed; another replica takes over")
LogDirNotFound = _final(57, "the broker does not have this log directory")
SaslAuthenticationFailed = _final(58, "the broker refused the credentials; check user and password")
UnknownProducerId = _final(59, "the broker no longer knows this producer, because its records are gone")
ReassignmentInProgress = _final(60, "a reassignment of the partition is in progress")
DelegationTokenAuthDisabled = _final(61, "delegation tokens are disabled in the cluster")
DelegationTokenNotFound = _final(62, "the broker does not know this delegation token")
DelegationTokenOwnerMismatch = _final(63, "the delegation token belongs to another user")
DelegationTokenRequestNotAllowed = _final(64, "delegation tokens cannot be requested over this kind of connection")
DelegationTokenAuthorizationFailed = _final(65, "not allowed to use this delegation token")
DelegationTokenExpired = _final(66, "the delegation token has expired; get a new one")
InvalidPrincipalType = _final(67, "the kind of principal is not supported")
NonEmptyGroup = _final(68, "the group still has members")
GroupIdNotFound = _final(69, "the group does not exist")
FetchSessionIdNotFound = _again(70, "the broker has dropped the fetch session")
InvalidFetchSessionEpoch = _again(71, "the fetch session's epoch is not the next one")
ListenerNotFound = _moved(72, "the partition's leader does not have this listener; check advertised.listeners")
TopicDeletionDisabled = _final(73, "the deletion of topics is disabled in the cluster")
FencedLeaderEpoch = _moved(74, "the client's leader epoch is older than the broker's")
UnknownLeaderEpoch = _again(75, "the client's leader epoch is newer than the broker's")
UnsupportedCompressionType = _final(76, "the broker is too old for this compression; choose another one")
StaleBrokerEpoch = _final(77, "the broker has restarted since")
OffsetNotAvailable = _again(78, "a new leader has not caught up with its high watermark yet")
MemberIdRequired = _final(79, "the group needs a member id first")
PreferredLeaderNotAvailable = _moved(80, "the preferred leader is not available")
GroupMaxSizeReached = _final(81, "the group is full")
FencedInstanceId = _final(82, "another member with this group.instance.id has joined")
EligibleLeadersNotAvailable = _moved(83, "no eligible leader is available")
ElectionNotNeeded = _moved(84, "the partition needs no election")
NoReassignmentInProgress = _final(85, "no reassignment is in progress")
GroupSubscribedToTopic = _final(86, "the group is subscribed to the topic, so its offsets cannot be deleted now")
InvalidRecord = _final(87, "the broker rejected the batch; correct the record that it names, or see its log")
UnstableOffsetCommit = _again(88, "a transaction that is still open has pending offsets")
ThrottlingQuotaExceeded = _again(89, "the quota is used up")
ProducerFenced = _final(90, "a newer producer with this transactional id replaced this one; close this producer")
ResourceNotFound = _final(91, "the resource does not exist")
DuplicateResource = _final(92, "the request names the resource twice")
UnacceptableCredential = _final(93, "the new credential is not acceptable; choose a stronger one")
InconsistentVoterSet = _final(94, "a sender or receiver is not among the voters")
InvalidUpdateVersion = _final(95, "the new version of the feature is not valid")
FeatureUpdateFailed = _final(96, "the cluster could not update its features")
PrincipalDeserializationFailure = _final(97, "the brokers could not forward the principal; see their logs")
SnapshotNotFound = _final(98, "the snapshot does not exist")
PositionOutOfRange = _final(99, "the position is outside the snapshot")
UnknownTopicId = _moved(100, "the broker does not know a topic with this id: deleted, or not created yet")
DuplicateBrokerRegistration = _final(101, "another broker with this id is registered")
BrokerIdNotRegistered = _final(102, "no broker with this id is registered")
InconsistentTopicId = _moved(103, "the topic's id has changed: it was deleted and created again")
InconsistentClusterId = _final(104, "this is not the expected cluster; check the addresses")
TransactionalIdNotFound = _final(105, "the cluster does not know this transactional id")
FetchSessionTopicIdError = _again(106, "topic ids were mixed with names in a fetch session")
IneligibleReplica = _final(107, "a replica is not eligible to join the in-sync replicas")
NewLeaderElected = _final(108, "the partition has changed and has a new leader")
OffsetMovedToTieredStorage = _final(109, "the offset is in tiered storage now")
FencedMemberEpoch = _final(110, "the group no longer accepts this member's epoch; rejoin it")
UnreleasedInstanceId = _final(111, "the group.instance.id is still in use by a member that has not left")
UnsupportedAssignor = _final(112, "the group does not support this assignor")
StaleMemberEpoch = _final(113, "the member's epoch is out of date")
MismatchedEndpointType = _final(114, "the request went to a controller's port instead of a broker's, or vice versa")
UnsupportedEndpointType = _final(115, "this kind of endpoint is not supported")
UnknownControllerId = _final(116, "there is no controller with this id")
UnknownSubscriptionId = _final(117, "the telemetry subscription is out of date")
TelemetryTooLarge = _final(118, "the telemetry is larger than the broker allows")
InvalidRegistration = _final(119, "the controller does not accept the broker's registration")
TransactionAbortable = _final(120, "the transaction cannot continue; abort it, then begin another")
InvalidRecordState = _final(121, "the record's delivery can no longer be acknowledged")
ShareSessionNotFound = _again(122, "the share session does not exist")
InvalidShareSessionEpoch = _again(123, "the share session's epoch is not the next one")
FencedStateEpoch = _final(124, "the share group's state has another epoch now")
InvalidVoterKey = _final(125, "the voter's key is not that of the replica")
DuplicateVoter = _final(126, "the voter is in the set already")
VoterNotFound = _final(127, "the voter is not in the set")
InvalidRegularExpression = _final(128, "the regular expression is not valid")
RebootstrapRequired = _final(129, "too much has changed; connect again from the bootstrap addresses")
StreamsInvalidTopology = _final(130, "the topology is not valid")
StreamsInvalidTopologyEpoch = _final(131, "the topology's epoch is not valid")
StreamsTopologyFenced = _final(132, "the topology's epoch is out of date")
ShareSessionLimitReached = _again(133, "the broker has no room for another share session")

# The assignments above name the classes; Kafka's own names are the same in capitals, with one exception.
for _name, _class in list(globals().items()):
    if isinstance(_class, type) and issubclass(_class, KafkaError) and _class is not KafkaError:
        _class.__name__ = _class.__qualname__ = _name
        _class.name = _class.name or re.sub(r"(?<!^)(?=[A-Z])", "_", _name).upper()


class ConnectionLost(KafkaError):
    """The connection broke; it is not known whether the broker executed the last requests."""

    name = "CONNECTION_LOST"
    retriable = True
    refresh_metadata = True
    says = "the connection to the broker broke before it answered"


class Unreachable(ConnectionLost):
    """A connection could not be opened, so the broker got no request; `detail` is the whole text."""

    name = "UNREACHABLE"
    says = "the broker cannot be reached"
    next = "check the address and its port, and that the broker runs (penstock status shows the local one)"

    def __str__(self) -> str:
        return self.detail


class NotABroker(Unreachable):
    """What answers at the address does not speak Kafka's protocol, or not over this kind of connection."""

    next = "give the address of a broker, and the security protocol of its port"


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
