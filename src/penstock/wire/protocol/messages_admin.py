"""The messages for topics, configurations, groups and their members, as data: see `message_schema`.

The highest versions are those of Kafka 4.3, the lowest those that its brokers kept.
"""

from penstock.wire.protocol.message_schema import Api

CREATE_TOPICS = Api(
    19,
    "CreateTopics",
    (2, 7),
    flexible=5,
    request="""
    topics []
      name string
      num_partitions int32
      replication_factor int16
      assignments []
        partition_index int32
        broker_ids []int32
      configs []
        name string
        value string?
    timeout_ms int32 =60000
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    topics []
      name string
      topic_id uuid 7+
      error_code int16
      error_message string?
      topic_config_error_code int16 5+ tag0
      num_partitions int32 5+ =-1
      replication_factor int16 5+ =-1
      configs []? 5+
        name string
        value string?
        read_only bool
        config_source int8 =-1
        is_sensitive bool
    """,
)

# From version 6 on a topic can be named by its id (KIP-516).
DELETE_TOPICS = Api(
    20,
    "DeleteTopics",
    (1, 6),
    flexible=4,
    request="""
    topics [] 6+ !
      name string? =null
      topic_id uuid
    topic_names []string 1-5
    timeout_ms int32
    """,
    response="""
    throttle_time_ms int32
    responses []
      name string?6+
      topic_id uuid 6+
      error_code int16
      error_message string? 5+ =null
    """,
)

# `count` is the new number of partitions, not how many are added (KIP-195).
CREATE_PARTITIONS = Api(
    37,
    "CreatePartitions",
    (0, 3),
    flexible=2,
    request="""
    topics []
      name string
      count int32
      assignments []?
        broker_ids []int32
    timeout_ms int32
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    results []
      name string
      error_code int16
      error_message string? =null
    """,
)

# Resource type 2 is a topic, 4 a broker; operation 0 sets, 1 deletes, 2 appends to a list, 3 subtracts (KIP-339).
INCREMENTAL_ALTER_CONFIGS = Api(
    44,
    "IncrementalAlterConfigs",
    (0, 1),
    flexible=1,
    request="""
    resources []
      resource_type int8
      resource_name string
      configs []
        name string
        config_operation int8
        value string?
    validate_only bool
    """,
    response="""
    throttle_time_ms int32
    responses []
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
    """,
)

# Null for `configuration_keys` asks for all. A source of 5 is a default of Kafka itself (KIP-226).
DESCRIBE_CONFIGS = Api(
    32,
    "DescribeConfigs",
    (1, 4),
    flexible=4,
    request="""
    resources []
      resource_type int8
      resource_name string
      configuration_keys []string?
    include_synonyms bool
    include_documentation bool 3+ !
    """,
    response="""
    throttle_time_ms int32
    results []
      error_code int16
      error_message string?
      resource_type int8
      resource_name string
      configs []
        name string
        value string?
        read_only bool
        config_source int8 =-1
        is_sensitive bool
        synonyms []
          name string
          value string?
          source int8
        config_type int8 3+
        documentation string? 3+
    """,
)

# A broker reports the sizes of the replicas that it has itself (KIP-113).
DESCRIBE_LOG_DIRS = Api(
    35,
    "DescribeLogDirs",
    (1, 5),
    flexible=2,
    request="""
    topics []?
      topic string
      partitions []int32
    """,
    response="""
    throttle_time_ms int32
    error_code int16 3+
    results []
      error_code int16
      log_dir string
      topics []
        name string
        partitions []
          partition_index int32
          partition_size int64
          offset_lag int64
          is_future_key bool
      total_bytes int64 4+ =-1
      usable_bytes int64 4+ =-1
      is_cordoned bool 5+
    """,
)

DESCRIBE_CLUSTER = Api(
    60,
    "DescribeCluster",
    (0, 2),
    flexible=0,
    request="""
    include_cluster_authorized_operations bool
    endpoint_type int8 1+ =1 !
    include_fenced_brokers bool 2+ !
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    error_message string? =null
    endpoint_type int8 1+ =1 !
    cluster_id string
    controller_id int32 =-1
    brokers []
      broker_id int32
      host string
      port int32
      rack string? =null
      is_fenced bool 2+ !
    cluster_authorized_operations int32 =-0x80000000
    """,
)

# A broker lists the groups that it coordinates. States are KIP-518, types KIP-848.
LIST_GROUPS = Api(
    16,
    "ListGroups",
    (0, 5),
    flexible=3,
    request="""
    states_filter []string 4+ !
    types_filter []string 5+ !
    """,
    response="""
    throttle_time_ms int32 1+
    error_code int16
    groups []
      group_id string
      protocol_type string
      group_state string 4+
      group_type string 5+
    """,
)

# Groups of the classic protocol; a missing group is Dead, from version 6 on an error (KIP-1043).
DESCRIBE_GROUPS = Api(
    15,
    "DescribeGroups",
    (0, 6),
    flexible=5,
    request="""
    groups []string
    include_authorized_operations bool 3+ !
    """,
    response="""
    throttle_time_ms int32 1+
    groups []
      error_code int16
      error_message string? 6+ =null !
      group_id string
      group_state string
      protocol_type string
      protocol_data string
      members []
        member_id string
        group_instance_id string? 4+ =null
        client_id string
        client_host string
        member_metadata bytes
        member_assignment bytes
      authorized_operations int32 3+ =-0x80000000 !
    """,
)

# Groups of the protocol of KIP-848.
CONSUMER_GROUP_DESCRIBE = Api(
    69,
    "ConsumerGroupDescribe",
    (0, 1),
    flexible=0,
    request="""
    group_ids []string
    include_authorized_operations bool
    """,
    response="""
    throttle_time_ms int32
    groups []
      error_code int16
      error_message string? =null
      group_id string
      group_state string
      group_epoch int32
      assignment_epoch int32
      assignor_name string
      members []
        member_id string
        instance_id string? =null
        rack_id string? =null
        member_epoch int32
        client_id string
        client_host string
        subscribed_topic_names []string
        subscribed_topic_regex string? =null
        assignment {}
          topic_partitions []
            topic_id uuid
            topic_name string
            partitions []int32
        target_assignment {}
          topic_partitions []
            topic_id uuid
            topic_name string
            partitions []int32
        member_type int8 1+ =-1
      authorized_operations int32 =-0x80000000
    """,
)

DELETE_GROUPS = Api(
    42,
    "DeleteGroups",
    (0, 2),
    flexible=2,
    request="""
    groups_names []string
    """,
    response="""
    throttle_time_ms int32
    results []
      group_id string
      error_code int16
    """,
)

# Without a member, a commit has generation -1, which only a group without members accepts. From version 10 on a topic
# is named by its id (KIP-848).
OFFSET_COMMIT = Api(
    8,
    "OffsetCommit",
    (2, 10),
    flexible=8,
    request="""
    group_id string
    generation_id_or_member_epoch int32 =-1
    member_id string
    group_instance_id string? 7+ =null !
    retention_time_ms int64 2-4 =-1
    topics []
      name string 2-9
      topic_id uuid 10+
      partitions []
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 6+ =-1
        committed_metadata string?
    """,
    response="""
    throttle_time_ms int32 3+
    topics []
      name string 2-9
      topic_id uuid 10+
      partitions []
        partition_index int32
        error_code int16
    """,
)

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
