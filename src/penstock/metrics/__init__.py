"""Numbers about rows and clients: delays of rows, the rows of sinks, and the text of Prometheus."""
