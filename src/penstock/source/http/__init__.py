"""HTTP ingest: events that come as requests, acknowledged when Kafka, or a spool on disk, has them."""
