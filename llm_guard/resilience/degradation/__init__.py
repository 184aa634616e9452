"""Degraded mode (degraded_mode), and deferred calls and dead letters (deferred)."""
