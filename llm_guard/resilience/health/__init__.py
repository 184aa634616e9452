"""Health of deployments (status), probes (probe_policy), and engines (engine_state, engine_uptime, restart_policy)."""
