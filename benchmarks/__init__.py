"""What the gateway survives, and what it costs: `make bench`, or `python -m benchmarks`.

rig        starts provider and gateway as processes of their own
scenarios  a misbehaving provider, with and without the gateway, against what was promised
compare    added latency, throughput, streams, memory: beside no proxy, a plain one, Envoy and any other
relay      CPU per streamed chunk, against a plain aiohttp relay
ops        what the operator's side costs, on and looked at
soak       a thousand streams with faults for minutes: memory, and what is left behind (`make soak`)
storm      the policies against thousands of clients, simulated
report     results as JSON and as pages
"""
