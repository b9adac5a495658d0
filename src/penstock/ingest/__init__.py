"""`penstock ingest`: takes events over HTTP and writes them to Kafka topics."""
