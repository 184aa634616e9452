"""Overrides by operators: of breakers (breaker_overrides), and holds of deployments (maintenance_holds)."""
