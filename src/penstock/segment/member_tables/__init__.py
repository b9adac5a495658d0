"""Members of segments in CQL tables, how many they are, and their delivery to topics."""
