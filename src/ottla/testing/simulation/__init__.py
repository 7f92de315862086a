"""Whole brokers in one process on virtual time, from one seed: loop, network and registry of a simulation."""
