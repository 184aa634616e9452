"""What calls and streams cost, beside nobody, a plain proxy, Envoy and any other: `python -m benchmarks compare`.

ways     who is compared, each alone on one processor
load     calls as fast as answers come, or at a given rate
measure  memory, then calls, then streams; everybody in turns, round by round
result   medians over rounds, ratios, what was promised
page     compare.json, compare.md
picture  compare.png
"""
