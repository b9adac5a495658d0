"""`penstock ingest`: events by HTTP into the topics of Kafka."""
