"""Resilience over real sockets: a misbehaving provider, and what different clients get from it.

catalogue  the scenarios: what the provider does and when, what is promised
clients    who calls: without a gateway, with the SDK's own retries, through llm_guard, through another gateway
play       one scenario with every client at once, each before a provider of its own
measure    shares, percentiles, recoveries; what was promised and does not hold
run        all of them, with progress
report     results as JSON and as a page
pictures   results as pictures
"""
