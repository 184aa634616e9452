"""Calls as OpenTelemetry spans (spans), and their export (exporter)."""
