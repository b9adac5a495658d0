"""Real services on one machine, without containers: a Kafka broker and a CQL database from their published jars."""
