"""The messages of idempotence and transactions (KIP-98, KIP-890), as data: see `message_schema`.

The versions are those of Kafka 1.0 to 4.3.
"""

from penstock.wire.protocol.message_schema import Api

# Version 6 is left out: Kafka 4.3 marks it as unstable (two-phase commit, KIP-939).
INIT_PRODUCER_ID = Api(
    22,
    "InitProducerId",
    (0, 5),
    flexible=2,
    request="""
    transactional_id string?
    transaction_timeout_ms int32
    producer_id int64 3+ =-1 !
    producer_epoch int16 3+ =-1 !
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 =-1
    producer_epoch int16
    """,
)

# From version 4 on only brokers send it, to verify (KIP-890); producers use version 3 and below.
ADD_PARTITIONS_TO_TXN = Api(
    24,
    "AddPartitionsToTxn",
    (0, 5),
    flexible=3,
    request="""
    transactions [] 4+ !
      transactional_id string
      producer_id int64
      producer_epoch int16
      verify_only bool
      topics []
        name string
        partitions []int32
    v3_and_below_transactional_id string 0-3 !
    v3_and_below_producer_id int64 0-3 !
    v3_and_below_producer_epoch int16 0-3 !
    v3_and_below_topics [] 0-3 !
      name string
      partitions []int32
    """,
    response="""
    throttle_time_ms int32
    error_code int16 4+
    results_by_transaction [] 4+ !
      transactional_id string
      topic_results []
        name string
        results_by_partition []
          partition_index int32
          partition_error_code int16
    results_by_topic_v3_and_below [] 0-3 !
      name string
      results_by_partition []
        partition_index int32
        partition_error_code int16
    """,
)

ADD_OFFSETS_TO_TXN = Api(
    25,
    "AddOffsetsToTxn",
    (0, 4),
    flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    group_id string
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    """,
)

# From version 5 on the answer has the producer's next epoch (KIP-890).
END_TXN = Api(
    26,
    "EndTxn",
    (0, 5),
    flexible=3,
    request="""
    transactional_id string
    producer_id int64
    producer_epoch int16
    committed bool
    """,
    response="""
    throttle_time_ms int32
    error_code int16
    producer_id int64 5+ =-1
    producer_epoch int16 5+ =-1
    """,
)

# From version 5 on the group need not be added to the transaction first (KIP-890).
TXN_OFFSET_COMMIT = Api(
    28,
    "TxnOffsetCommit",
    (0, 5),
    flexible=3,
    request="""
    transactional_id string
    group_id string
    producer_id int64
    producer_epoch int16
    generation_id int32 3+ =-1 !
    member_id string 3+ !
    group_instance_id string? 3+ =null !
    topics []
      name string
      partitions []
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 2+ =-1
        committed_metadata string?
    """,
    response="""
    throttle_time_ms int32
    topics []
      name string
      partitions []
        partition_index int32
        error_code int16
    """,
)

# Version 0 is not supported: it asks for offsets that are kept in ZooKeeper.
OFFSET_FETCH = Api(
    9,
    "OffsetFetch",
    (1, 10),
    flexible=6,
    request="""
    group_id string 1-7 !
    topics []?2-7 1-7 !
      name string
      partition_indexes []int32
    groups [] 8+ !
      group_id string
      member_id string? 9+ =null
      member_epoch int32 9+ =-1
      topics []?
        name string 8-9
        topic_id uuid 10+
        partition_indexes []int32
    require_stable bool 7+ !
    """,
    response="""
    throttle_time_ms int32 3+
    topics [] 1-7 !
      name string
      partitions []
        partition_index int32
        committed_offset int64
        committed_leader_epoch int32 5-7 =-1
        metadata string?
        error_code int16
    error_code int16 2-7
    groups [] 8+ !
      group_id string
      topics []
        name string 8-9
        topic_id uuid 10+
        partitions []
          partition_index int32
          committed_offset int64
          committed_leader_epoch int32 =-1
          metadata string?
          error_code int16
      error_code int16
    """,
)
