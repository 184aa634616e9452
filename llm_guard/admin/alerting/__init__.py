"""Fires and resolves alerts (alerts) by what has been measured (signals)."""
