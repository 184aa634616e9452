"""The operator's side, never on a call's way: /metrics, /healthz, /readyz. It sees the rest through snapshots."""
