"""Records with the values and schemas of Kafka Connect, and what reads them from the bytes of topics."""
