"""Metrics: the endpoint, the text format (exposition), and the families: call_metrics, state_metrics (deployments and
the gateway), subsystem_metrics (response cache, degraded modes, engines, stored calls, probes)."""
