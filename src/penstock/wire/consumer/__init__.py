"""Reading topics: fetches and their records."""
