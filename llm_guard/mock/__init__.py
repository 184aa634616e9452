"""A mock provider with configurable faults, and a load generator for it: for the demo, benchmarks and tests."""
