"""Files as the destination of sink connectors: Kafka's FileStreamSink, and files of a topic's records by offset."""
