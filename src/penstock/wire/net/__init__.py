"""Connections to brokers, and the metadata of a cluster."""
