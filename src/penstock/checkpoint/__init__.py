"""Checkpoints of queries as files: Spark's log of batches, and what a checkpoint belongs to. Does not start Spark."""
