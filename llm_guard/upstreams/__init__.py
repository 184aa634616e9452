"""Watches upstreams and restarts engines, apart from the data path: probes/ and engines/."""
