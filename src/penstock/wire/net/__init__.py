"""Connections to brokers, and what a cluster looks like."""
