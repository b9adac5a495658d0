"""A worker of Kafka Connect: its REST API, the configurations of connectors, and the tasks that run here."""
