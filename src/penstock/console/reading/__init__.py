"""What the console reads: runs, topics, connectors, checkpoints and state; nothing that it reads is believed."""
