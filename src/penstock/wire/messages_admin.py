"""The messages of the admin commands, as data: see `schema` for how they are written down.

The versions are those of Kafka 1.0 to 4.3.
"""

from penstock.wire.schema import Api

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

DESCRIBE_CONFIGS = Api(
    32,
    "DescribeConfigs",
    (0, 4),
    flexible=4,
    request="""
    resources []
      resource_type int8
      resource_name string
      configuration_keys []string?
    include_synonyms bool 1+ !
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
        is_default bool 0 !
        config_source int8 1+ =-1
        is_sensitive bool
        synonyms [] 1+
          name string
          value string?
          source int8
        config_type int8 3+
        documentation string? 3+
    """,
)

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
