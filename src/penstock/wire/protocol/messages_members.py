"""The messages of members of a classic group, as data: see `message_schema`.

The highest versions are those of Kafka 4.3, the lowest those that its brokers kept.
"""

from penstock.wire.protocol.message_schema import Api

# From version 4 on a new member is refused once, and given its id (KIP-394).
JOIN_GROUP = Api(
    11,
    "JoinGroup",
    (1, 9),
    flexible=6,
    request="""
    group_id string
    session_timeout_ms int32
    rebalance_timeout_ms int32 =-1
    member_id string
    group_instance_id string? 5+ =null !
    protocol_type string
    protocols []
      name string
      metadata bytes
    reason string? 8+ =null
    """,
    response="""
    throttle_time_ms int32 2+
    error_code int16
    generation_id int32 =-1
    protocol_type string? 7+ =null
    protocol_name string?7+
    leader string
    skip_assignment bool 9+ !
    member_id string
    members []
      member_id string
      group_instance_id string? 5+ =null
      metadata bytes
    """,
)

HEARTBEAT = Api(
    12,
    "Heartbeat",
    (0, 4),
    flexible=4,
    request="""
    group_id string
    generation_id int32
    member_id string
    group_instance_id string? 3+ =null !
    """,
    response="""
    throttle_time_ms int32 1+
    error_code int16
    """,
)

LEAVE_GROUP = Api(
    13,
    "LeaveGroup",
    (0, 5),
    flexible=4,
    request="""
    group_id string
    member_id string 0-2 !
    members [] 3+ !
      member_id string
      group_instance_id string? =null
      reason string? 5+ =null
    """,
    response="""
    throttle_time_ms int32 1+
    error_code int16
    members [] 3+ !
      member_id string
      group_instance_id string?
      error_code int16
    """,
)

SYNC_GROUP = Api(
    14,
    "SyncGroup",
    (0, 5),
    flexible=4,
    request="""
    group_id string
    generation_id int32
    member_id string
    group_instance_id string? 3+ =null !
    protocol_type string? 5+ =null
    protocol_name string? 5+ =null
    assignments []
      member_id string
      assignment bytes
    """,
    response="""
    throttle_time_ms int32 1+
    error_code int16
    protocol_type string? 5+ =null
    protocol_name string? 5+ =null
    assignment bytes
    """,
)
