"""Simulated storms on a virtual clock: the gateway's own policies against thousands of clients, with fixed seeds."""
