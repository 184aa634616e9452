"""The order of a route's deployments: load_balancing, latency; client_hints: what headers of the client ask for."""
