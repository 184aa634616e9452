"""Deployments and keys that are not tried for now.

breaker             the circuit breaker; settings: its settings; history: its state changes
failure_statistics  when failures are evidence; open_duration: how long it stays open
callers             separates callers that fail alone
cooldown            cooldowns of keys, models and upstreams
"""
