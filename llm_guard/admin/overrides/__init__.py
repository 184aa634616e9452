"""Overrides by operators: of breakers (breaker_overrides), holds of deployments (maintenance_holds), and faults
(injected_faults)."""
