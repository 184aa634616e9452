"""Settings for calls that deployments of another dialect serve."""
