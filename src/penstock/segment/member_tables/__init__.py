"""Members of segments in CQL tables, their counts, and their delivery to topics."""
