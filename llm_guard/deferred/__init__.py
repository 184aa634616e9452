"""Runs stored calls without a waiting client: deferred calls, and dead letters that an operator requeues.

errands      `Errands`: builds the parts, starts, reloads and stops them
keeper       stores a call as deferred or as a dead letter; the proxy calls it
window       `/v1/llm-guard/calls/ID`: a client polls a deferred call and fetches its response
runner       takes due calls from the store and runs them, a few at a time
asking       one round: executes a stored call through the gateway
terms        deadlines on the monotonic clock, immune to changes of the wall clock
upkeep       renews leases, recovers calls of dead gateways, deletes expired ones
told         completion webhooks
shelf        asynchronous access to the store
form         converts between a call and its stored form
credentials  the callers' credentials, which stay in memory
counts       counters for the metrics
tidings      events for operators, aggregated
"""
