"""Segments in the database: their members, how many there were when, and their delivery to destinations."""
