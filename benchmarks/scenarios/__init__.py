"""Resilience over real sockets: a misbehaving provider, and what different clients get from it.

catalogue  the scenarios: faults of the provider and their times, promises
clients    without a gateway, with the SDK's own retries, through llm_guard, through another gateway
play       one scenario with every client at once, each with a separate provider
measure    shares, percentiles, recoveries; promises that do not hold
run        all of them, with progress
report     results as JSON and as a page
pictures   results as pictures
"""
