"""The producer: batches, their queues, and their delivery to the brokers."""
