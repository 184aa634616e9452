"""A provider that misbehaves on request, and the load that drives it: for the demo, benchmarks and tests."""
