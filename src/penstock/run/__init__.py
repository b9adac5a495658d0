"""Running pipelines: what a pipeline is, its checkpoints, and keeping its queries alive until it is stopped."""
