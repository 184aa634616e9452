"""Incidents: what restricts calls and what alerts report, grouped by its cause."""
