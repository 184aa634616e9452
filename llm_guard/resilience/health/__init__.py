"""Health of deployments (status), probes (probe_policy), and engines (engine_state, restart_policy)."""
