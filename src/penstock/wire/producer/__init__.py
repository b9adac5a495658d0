"""The producer: batches, their queues and their way to the brokers."""
