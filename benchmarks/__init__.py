"""Benchmarks: what the gateway survives, and what it costs. `make bench`, or `python -m benchmarks`.

rig        starts provider and gateway as separate processes
scenarios  a misbehaving provider, with and without the gateway, against promised figures
compare    added latency, throughput, streams, memory: beside no proxy, a plain one, Envoy and any other
relay      CPU per streamed chunk, against a plain aiohttp relay
ops        cost of the operator's interface, enabled and in use
soak       a thousand streams with faults for minutes: memory, and leaks (`make soak`)
storm      the policies against thousands of clients, simulated
report     results as JSON and as pages
"""
