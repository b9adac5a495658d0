"""Reads topics: fetch requests and their records."""
