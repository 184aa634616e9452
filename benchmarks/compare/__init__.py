"""Compares the cost of calls and streams without a proxy and with the gateway, a plain proxy, Envoy and others: `python
-m benchmarks compare`.

ways     the compared targets, each alone on one processor
load     calls as fast as possible, or at a given rate
measure  memory, then calls, then streams; all targets in turns, round by round
result   medians over rounds, ratios, promises
page     compare.json, compare.md
picture  compare.png
"""
