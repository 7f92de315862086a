"""Connections from a broker to other brokers."""
