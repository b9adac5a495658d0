"""The messages for producing, reading and connecting, as data in the form of `message_schema`.

The lowest versions are those that Kafka 1.0 supports and later brokers kept, the highest those of Kafka 4.3.
"""

from penstock.wire.protocol.message_schema import Api

# From version 13 on topics have ids (KIP-516); in a transaction, 12 and later add the partition to it (KIP-890).
PRODUCE = Api(
    0,
    "Produce",
    (3, 13),
    flexible=9,
    request="""
    transactional_id string? =null
    acks int16
    timeout_ms int32
    topic_data []
      name string 3-12
      topic_id uuid 13+
      partition_data []
        index int32
        records records?
    """,
    response="""
    responses []
      name string 3-12
      topic_id uuid 13+
      partition_responses []
        index int32
        error_code int16
        base_offset int64
        log_append_time_ms int64 =-1
        log_start_offset int64 5+ =-1
        record_errors [] 8+
          batch_index int32
          batch_index_error_message string? =null
        error_message string? 8+ =null
        current_leader {} 10+ tag0 !
          leader_id int32 =-1
          leader_epoch int32 =-1
    throttle_time_ms int32
    node_endpoints [] 10+ tag0 !
      node_id int32
      host string
      port int32
      rack string? =null
    """,
)

# Sessions are KIP-227; from version 13 on topics have ids (KIP-516); tagged endpoints name a new leader (KIP-951).
FETCH = Api(
    1,
    "Fetch",
    (4, 18),
    flexible=12,
    request="""
    cluster_id string? 12+ =null tag0
    replica_id int32 4-14 =-1 !
    replica_state {} 15+ tag1 !
      replica_id int32 =-1
      replica_epoch int64 =-1
    max_wait_ms int32
    min_bytes int32
    max_bytes int32 =0x7FFFFFFF
    isolation_level int8
    session_id int32 7+
    session_epoch int32 7+ =-1
    topics []
      topic string 4-12
      topic_id uuid 13+
      partitions []
        partition int32
        current_leader_epoch int32 9+ =-1
        fetch_offset int64
        last_fetched_epoch int32 12+ =-1 !
        log_start_offset int64 5+ =-1
        partition_max_bytes int32
        replica_directory_id uuid 17+ tag0
        high_watermark int64 18+ =0x7FFFFFFFFFFFFFFF tag1
    forgotten_topics_data [] 7+ !
      topic string 7-12
      topic_id uuid 13+
      partitions []int32
    rack_id string 11+
    """,
    response="""
    throttle_time_ms int32
    error_code int16 7+
    session_id int32 7+ !
    responses []
      topic string 4-12
      topic_id uuid 13+
      partitions []
        partition_index int32
        error_code int16
        high_watermark int64
        last_stable_offset int64 =-1
        log_start_offset int64 5+ =-1
        diverging_epoch {} 12+ tag0 !
          epoch int32 =-1
          end_offset int64 =-1
        current_leader {} 12+ tag1 !
          leader_id int32 =-1
          leader_epoch int32 =-1
        snapshot_id {} 12+ tag2 !
          end_offset int64 =-1
          epoch int32 =-1
        aborted_transactions []?
          producer_id int64
          first_offset int64
        preferred_read_replica int32 11+ =-1 !
        records records?
    node_endpoints [] 16+ tag0 !
      node_id int32
      host string
      port int32
      rack string? =null
    """,
)

LIST_OFFSETS = Api(
    2,
    "ListOffsets",
    (1, 11),
    flexible=6,
    request="""
    replica_id int32
    isolation_level int8 2+ !
    topics []
      name string
      partitions []
        partition_index int32
        current_leader_epoch int32 4+ =-1
        timestamp int64
    timeout_ms int32 10+
    """,
    response="""
    throttle_time_ms int32 2+
    topics []
      name string
      partitions []
        partition_index int32
        error_code int16
        timestamp int64 =-1
        offset int64 =-1
        leader_epoch int32 4+ =-1 !
    """,
)

# Null for `topics` asks for all topics, an empty list only for brokers; from version 10 on a topic has an id (KIP-516).
METADATA = Api(
    3,
    "Metadata",
    (1, 13),
    flexible=9,
    request="""
    topics []?
      topic_id uuid 10+
      name string?10+
    allow_auto_topic_creation bool 4+ =true !
    include_cluster_authorized_operations bool 8-10 !
    include_topic_authorized_operations bool 8+ !
    """,
    response="""
    throttle_time_ms int32 3+
    brokers []
      node_id int32
      host string
      port int32
      rack string? =null
    cluster_id string? 2+ =null
    controller_id int32 =-1
    topics []
      error_code int16
      name string?12+
      topic_id uuid 10+
      is_internal bool
      partitions []
        error_code int16
        partition_index int32
        leader_id int32
        leader_epoch int32 7+ =-1
        replica_nodes []int32
        isr_nodes []int32
        offline_replicas []int32 5+
      topic_authorized_operations int32 8+ =-0x80000000 !
    cluster_authorized_operations int32 8-10 =-0x80000000 !
    error_code int16 13+
    """,
)

# Key type 0 is a group, 1 a transactional id; from version 4 on several keys in one request (KIP-699).
FIND_COORDINATOR = Api(
    10,
    "FindCoordinator",
    (1, 6),
    flexible=3,
    request="""
    key string 1-3 !
    key_type int8
    coordinator_keys []string 4+ !
    """,
    response="""
    throttle_time_ms int32
    error_code int16 1-3 !
    error_message string? 1-3
    node_id int32 1-3 !
    host string 1-3 !
    port int32 1-3 !
    coordinators [] 4+ !
      key string
      node_id int32
      host string
      port int32
      error_code int16
      error_message string?
    """,
)

# Version 0 is not supported: its tokens would go over the wire outside the protocol's frames (KIP-152).
SASL_HANDSHAKE = Api(
    17,
    "SaslHandshake",
    (1, 1),
    flexible=None,
    request="""
    mechanism string
    """,
    response="""
    error_code int16
    mechanisms []string
    """,
)

# A broker that does not support the version answers with error 35 and a body of version 0 (KIP-511).
API_VERSIONS = Api(
    18,
    "ApiVersions",
    (0, 4),
    flexible=3,
    request="""
    client_software_name string 3+
    client_software_version string 3+
    """,
    response="""
    error_code int16
    api_keys []
      api_key int16
      min_version int16
      max_version int16
    throttle_time_ms int32 1+
    supported_features [] 3+ tag0
      name string
      min_version int16
      max_version int16
    finalized_features_epoch int64 3+ =-1 tag1
    finalized_features [] 3+ tag2
      name string
      max_version_level int16
      min_version_level int16
    zk_migration_ready bool 3+ tag3
    """,
)

SASL_AUTHENTICATE = Api(
    36,
    "SaslAuthenticate",
    (0, 2),
    flexible=2,
    request="""
    auth_bytes bytes
    """,
    response="""
    error_code int16
    error_message string?
    auth_bytes bytes
    session_lifetime_ms int64 1+
    """,
)
