"""`llm-guard doctor`: asks everything that a config names whether it would work.

command    the command: progress, table, JSON, exit code
findings   what a check has found, and its remedy
upstreams  checks of one upstream: name, connection, certificate, key, models, and calls where they are allowed
services   checks of what stands beside: the fleet's store, webhooks, collectors
remedies   what to do about each kind of failure
"""
