"""The official SDKs' own test suites, straight at a mock of their API and behind the gateway."""
