"""Settings of streams (settings)."""
