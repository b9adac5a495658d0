"""The console: a web page about runs, topics, connectors and state, served by a process of its own without Spark."""
