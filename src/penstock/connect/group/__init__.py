"""A group of workers that share connectors and tasks, with configurations, positions and states in Kafka."""
