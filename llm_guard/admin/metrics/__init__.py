"""Metrics: the endpoint, the text format (exposition), how a family is declared (declaration), and the tables of
families: call_metrics, state_metrics (deployments and the gateway), subsystem_metrics (degraded modes, probes, engines,
stored calls, response cache, limits of client keys)."""
