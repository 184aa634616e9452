"""`llm-guard doctor`: asks everything that a config names whether it would work.

command    the command: progress, table, JSON, exit code
findings   what a check has found, and its remedy
upstreams  checks of one upstream: name, connection, certificate, key, models
calls      checks of one model that cost, where they are allowed; exchange: requests with their failures
wanted     the model names that a config sends to each upstream
services   checks of what stands beside: the fleet's store, webhooks, collectors
remedies   what to do about each kind of failure
"""
