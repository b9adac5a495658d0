"""What Java does in its own way, and configurations and records depend on: patterns, expressions, numbers, text."""
