"""The CDC connector: its properties, the tasks of its tables, heartbeats and signals."""
