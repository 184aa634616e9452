"""What the gateway survives, and what it costs: `make bench`, or `python -m benchmarks [survival|cost]`.

rig        starts provider and gateway as processes of their own
survival   scenarios: a misbehaving provider, with and without the gateway, against what was promised
cost       added latency, throughput, concurrent streams
report     results as JSON, as a page, as pictures
"""
