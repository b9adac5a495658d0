"""HTTP for control planes: a server, who may call it, bodies, and errors; `penstock ingest` has its own data plane."""
