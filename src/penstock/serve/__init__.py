"""HTTP for control planes: a server, who may call it, bodies, and errors; and bounds, also for ingest's server."""
