"""The order of a route's deployments: candidates; client_hints: what headers of the client ask for."""
