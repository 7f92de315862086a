"""The one table of errors: every code a Kafka 4.3 broker may answer with, its name, and what it means.

A broker reports what went wrong with a number of two bytes in the response. The number decides what
the client does next: it retries the retriable ones (after a look at fresh metadata, where the leader may have
moved) and hands all others to its user. Codes and the retriable flag are Kafka's, for they are part of the
protocol; the texts are ours and are sent where a response has a field for a message.

`ApiError` carries such a code through our own code, from the place that finds the fault to the handler that
writes it into the response.
"""

from __future__ import annotations

from enum import IntEnum

from ottla.printable import shown

MAX_MESSAGE = 1_000
"""Characters of an error's message."""


class ErrorCode(IntEnum):
    """An error as it stands on the wire; `int(ErrorCode.X)` is the code."""

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool, text: str) -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, False, "The broker failed in a way it did not expect; its log says more."
    NONE = 0, False, "No error."
    OFFSET_OUT_OF_RANGE = 1, False, "The offset is not between the log's start and its end."
    CORRUPT_MESSAGE = 2, True, "A record batch is damaged: wrong checksum, wrong size or a missing key."
    UNKNOWN_TOPIC_OR_PARTITION = 3, True, "This broker does not host the topic or partition."
    INVALID_FETCH_SIZE = 4, False, "The requested fetch size is not valid."
    LEADER_NOT_AVAILABLE = 5, True, "The partition has no leader at the moment."
    NOT_LEADER_OR_FOLLOWER = 6, True, "This broker is not the leader (or not a replica) of the partition."
    REQUEST_TIMED_OUT = 7, True, "The request was not done in time."
    BROKER_NOT_AVAILABLE = 8, False, "The broker is not available."
    REPLICA_NOT_AVAILABLE = 9, True, "The replica is not available on this broker."
    MESSAGE_TOO_LARGE = 10, False, "A record batch is larger than the broker accepts."
    STALE_CONTROLLER_EPOCH = 11, False, "The request comes from a controller that has been replaced."
    OFFSET_METADATA_TOO_LARGE = 12, False, "The metadata string of the offset commit is too long."
    NETWORK_EXCEPTION = 13, True, "The connection broke before the response came."
    COORDINATOR_LOAD_IN_PROGRESS = 14, True, "The coordinator is still loading its state."
    COORDINATOR_NOT_AVAILABLE = 15, True, "The coordinator is not available."
    NOT_COORDINATOR = 16, True, "This broker is not the coordinator."
    INVALID_TOPIC_EXCEPTION = (
        17,
        False,
        "The topic name is not valid, or the operation is not allowed on this topic.",
    )
    RECORD_LIST_TOO_LARGE = 18, False, "The records are larger than a log segment may be."
    NOT_ENOUGH_REPLICAS = 19, True, "Nothing was written: fewer replicas are in sync than required."
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, True, "Written, but fewer replicas are in sync than required."
    INVALID_REQUIRED_ACKS = 21, False, "acks must be 0, 1 or -1 (all)."
    ILLEGAL_GENERATION = 22, False, "The group has moved on to another generation."
    INCONSISTENT_GROUP_PROTOCOL = (
        23,
        False,
        "The member shares no protocol with the other members of the group.",
    )
    INVALID_GROUP_ID = 24, False, "The group id is not valid."
    UNKNOWN_MEMBER_ID = 25, False, "The coordinator does not know this member."
    INVALID_SESSION_TIMEOUT = 26, False, "The session timeout is outside the range the broker allows."
    REBALANCE_IN_PROGRESS = 27, False, "The group is rebalancing; the member must join again."
    INVALID_COMMIT_OFFSET_SIZE = 28, False, "The offset commit is too large."
    TOPIC_AUTHORIZATION_FAILED = 29, False, "Not authorized for this topic."
    GROUP_AUTHORIZATION_FAILED = 30, False, "Not authorized for this group."
    CLUSTER_AUTHORIZATION_FAILED = 31, False, "Not authorized for this operation on the cluster."
    INVALID_TIMESTAMP = 32, False, "A record's timestamp is too far from the broker's time."
    UNSUPPORTED_SASL_MECHANISM = 33, False, "The broker does not offer this SASL mechanism."
    ILLEGAL_SASL_STATE = 34, False, "The request does not fit the state of the SASL exchange."
    UNSUPPORTED_VERSION = 35, False, "The broker does not support this version of the API."
    TOPIC_ALREADY_EXISTS = 36, False, "A topic of this name already exists."
    INVALID_PARTITIONS = 37, False, "The number of partitions is not valid."
    INVALID_REPLICATION_FACTOR = (
        38,
        False,
        "The replication factor is below 1 or above the number of brokers.",
    )
    INVALID_REPLICA_ASSIGNMENT = 39, False, "The assignment of replicas is not valid."
    INVALID_CONFIG = 40, False, "The configuration is not valid."
    NOT_CONTROLLER = 41, True, "This broker is not the controller."
    INVALID_REQUEST = 42, False, "The request makes no sense; the broker's log says why."
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, False, "The log's message format does not support the request."
    POLICY_VIOLATION = 44, False, "The request breaks a policy of the cluster."
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, False, "The producer's sequence number leaves a gap."
    DUPLICATE_SEQUENCE_NUMBER = 46, False, "The producer's sequence number was seen before."
    INVALID_PRODUCER_EPOCH = 47, False, "The producer's epoch is old: another instance has taken over."
    INVALID_TXN_STATE = 48, False, "The transaction's state does not allow this operation."
    INVALID_PRODUCER_ID_MAPPING = 49, False, "The producer id does not belong to the transactional id."
    INVALID_TRANSACTION_TIMEOUT = 50, False, "The transaction timeout is longer than the broker allows."
    CONCURRENT_TRANSACTIONS = 51, True, "Another operation on this transaction is still running."
    TRANSACTION_COORDINATOR_FENCED = (
        52,
        False,
        "The marker comes from a transaction coordinator that was replaced.",
    )
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, False, "Not authorized for this transactional id."
    SECURITY_DISABLED = 54, False, "No authorizer is configured on the broker."
    OPERATION_NOT_ATTEMPTED = 55, False, "Not tried, because another operation of the same request failed."
    KAFKA_STORAGE_ERROR = 56, True, "The broker could not read or write its disk."
    LOG_DIR_NOT_FOUND = 57, False, "The broker has no such log directory."
    SASL_AUTHENTICATION_FAILED = 58, False, "SASL authentication failed."
    UNKNOWN_PRODUCER_ID = (
        59,
        False,
        "The broker knows nothing of this producer id; its records may have expired.",
    )
    REASSIGNMENT_IN_PROGRESS = 60, False, "The partition is being moved already."
    DELEGATION_TOKEN_AUTH_DISABLED = 61, False, "Delegation tokens are switched off."
    DELEGATION_TOKEN_NOT_FOUND = 62, False, "The broker does not know this delegation token."
    DELEGATION_TOKEN_OWNER_MISMATCH = (
        63,
        False,
        "The principal is neither owner nor renewer of the delegation token.",
    )
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        False,
        "Delegation tokens may not be requested over this connection.",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, False, "Not authorized for this delegation token."
    DELEGATION_TOKEN_EXPIRED = 66, False, "The delegation token has expired."
    INVALID_PRINCIPAL_TYPE = 67, False, "This type of principal is not supported."
    NON_EMPTY_GROUP = 68, False, "The group still has members."
    GROUP_ID_NOT_FOUND = 69, False, "There is no group of this id."
    FETCH_SESSION_ID_NOT_FOUND = 70, True, "The broker does not know this fetch session."
    INVALID_FETCH_SESSION_EPOCH = 71, True, "The epoch of the fetch session is not the next one."
    LISTENER_NOT_FOUND = 72, True, "The leader has no listener of the name the client uses."
    TOPIC_DELETION_DISABLED = 73, False, "Deleting topics is switched off."
    FENCED_LEADER_EPOCH = 74, True, "The leader epoch of the request is older than the broker's."
    UNKNOWN_LEADER_EPOCH = 75, True, "The leader epoch of the request is newer than the broker's."
    UNSUPPORTED_COMPRESSION_TYPE = 76, False, "The client's version cannot read the partition's compression."
    STALE_BROKER_EPOCH = 77, False, "The broker has registered anew since the request was made."
    OFFSET_NOT_AVAILABLE = 78, True, "A new leader does not know the high watermark yet."
    MEMBER_ID_REQUIRED = 79, False, "The member must join again with the id it was just given."
    PREFERRED_LEADER_NOT_AVAILABLE = 80, True, "The preferred leader is not available."
    GROUP_MAX_SIZE_REACHED = 81, False, "The group has as many members as it may have."
    FENCED_INSTANCE_ID = 82, False, "Another consumer uses the same group.instance.id."
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, True, "No replica that may lead the partition is available."
    ELECTION_NOT_NEEDED = 84, True, "The partition needs no election."
    NO_REASSIGNMENT_IN_PROGRESS = 85, False, "The partition is not being moved."
    GROUP_SUBSCRIBED_TO_TOPIC = 86, False, "The group is subscribed to the topic, so its offsets stay."
    INVALID_RECORD = 87, False, "A record is not valid."
    UNSTABLE_OFFSET_COMMIT = 88, True, "An open transaction holds offsets of this group."
    THROTTLING_QUOTA_EXCEEDED = 89, True, "The quota is used up; try again later."
    PRODUCER_FENCED = 90, False, "A newer producer uses the same transactional id."
    RESOURCE_NOT_FOUND = 91, False, "The request names a resource that does not exist."
    DUPLICATE_RESOURCE = 92, False, "The request names the same resource twice."
    UNACCEPTABLE_CREDENTIAL = 93, False, "The credential does not meet the broker's rules."
    INCONSISTENT_VOTER_SET = 94, False, "Sender or receiver is not one of the expected voters."
    INVALID_UPDATE_VERSION = 95, False, "The version of the update is not valid."
    FEATURE_UPDATE_FAILED = 96, False, "The finalized features could not be changed."
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, False, "The principal of a forwarded request could not be read."
    SNAPSHOT_NOT_FOUND = 98, False, "There is no such snapshot."
    POSITION_OUT_OF_RANGE = 99, False, "The position lies outside the snapshot."
    UNKNOWN_TOPIC_ID = 100, True, "This broker hosts no topic of this id."
    DUPLICATE_BROKER_REGISTRATION = 101, False, "A live broker already uses this id."
    BROKER_ID_NOT_REGISTERED = 102, False, "No broker of this id is registered."
    INCONSISTENT_TOPIC_ID = 103, True, "The topic id of the request is not the id of the log."
    INCONSISTENT_CLUSTER_ID = 104, False, "The request is meant for another cluster."
    TRANSACTIONAL_ID_NOT_FOUND = 105, False, "There is no such transactional id."
    FETCH_SESSION_TOPIC_ID_ERROR = 106, True, "The fetch session mixes topic names and topic ids."
    INELIGIBLE_REPLICA = 107, False, "The new ISR holds a replica that may not be in it."
    NEW_LEADER_ELECTED = 108, False, "The partition changed as asked, and its leader changed too."
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, False, "The offset has moved to remote storage."
    FENCED_MEMBER_EPOCH = (
        110,
        False,
        "The member's epoch is fenced: it must give up its partitions and join again.",
    )
    UNRELEASED_INSTANCE_ID = 111, False, "Another member still holds this instance id."
    UNSUPPORTED_ASSIGNOR = 112, False, "The group does not support this assignor."
    STALE_MEMBER_EPOCH = 113, False, "The member's epoch is old; its next heartbeat brings the new one."
    MISMATCHED_ENDPOINT_TYPE = 114, False, "The request was sent to the wrong type of endpoint."
    UNSUPPORTED_ENDPOINT_TYPE = 115, False, "This type of endpoint is not supported."
    UNKNOWN_CONTROLLER_ID = 116, False, "There is no controller of this id."
    UNKNOWN_SUBSCRIPTION_ID = 117, False, "The telemetry subscription is unknown or old."
    TELEMETRY_TOO_LARGE = 118, False, "The telemetry is larger than the broker accepts."
    INVALID_REGISTRATION = 119, False, "The controller refuses the broker's registration."
    TRANSACTION_ABORTABLE = (
        120,
        False,
        "The transaction failed; abort it and go on with the same transactional id.",
    )
    INVALID_RECORD_STATE = 121, False, "The record's delivery state does not allow this acknowledgement."
    SHARE_SESSION_NOT_FOUND = 122, True, "The broker does not know this share session."
    INVALID_SHARE_SESSION_EPOCH = 123, True, "The epoch of the share session is not the next one."
    FENCED_STATE_EPOCH = 124, False, "The state epoch of the share group has moved on."
    INVALID_VOTER_KEY = 125, False, "The voter key is not the receiver's."
    DUPLICATE_VOTER = 126, False, "The voter is in the set already."
    VOTER_NOT_FOUND = 127, False, "The voter is not in the set."
    INVALID_REGULAR_EXPRESSION = 128, False, "The regular expression is not valid."
    REBOOTSTRAP_REQUIRED = (
        129,
        False,
        "The client's metadata is too old; it must start again from its bootstrap servers.",
    )
    STREAMS_INVALID_TOPOLOGY = 130, False, "The topology is not valid."
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, False, "The topology epoch is not valid."
    STREAMS_TOPOLOGY_FENCED = 132, False, "The topology epoch is old."
    SHARE_SESSION_LIMIT_REACHED = 133, True, "The broker holds as many share sessions as it may."


def error_of(code: int) -> ErrorCode:
    """The error with this code; UNKNOWN_SERVER_ERROR for a code that no Kafka of our time has."""
    found = ErrorCode._value2member_map_.get(code)
    return found if isinstance(found, ErrorCode) else ErrorCode.UNKNOWN_SERVER_ERROR


class ApiError(Exception):
    """A fault that the protocol has a code for. Without a message it says the code's own text.

    Messages name what the client sent, which may be anything: they are cut and hold printable text only.
    """

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        self.message = code.text if message is None else shown(message, MAX_MESSAGE)
        super().__init__(self.message)

    def __repr__(self) -> str:
        return f"ApiError({self.code.name}, {self.message!r})"
