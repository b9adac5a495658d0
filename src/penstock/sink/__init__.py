"""Where frames go; a sink is data (a frozen dataclass), and `write` turns frame and sinks into one query."""
