"""Watches upstreams, restarts engines and obtains credentials, apart from the data path: probes/, engines/ and
credentials/."""
