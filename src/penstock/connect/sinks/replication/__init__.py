"""The sink connector of a replication: extended events become changes of tables."""
