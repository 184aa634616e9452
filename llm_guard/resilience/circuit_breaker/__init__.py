"""Deployments and keys that are not tried for now.

breaker        the circuit breaker, and its counts; settings: its settings; history: its state changes
opening_rules  when it opens: evidence or chance; open_duration: how long it stays open
callers        separates callers that fail alone
cooldown       cooldowns of keys, models and upstreams
"""
