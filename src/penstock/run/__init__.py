"""Running pipelines: the pipeline itself, its checkpoints, and its queries, which run until it is stopped."""
