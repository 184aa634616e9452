"""Runs stored calls without a waiting client: deferred calls, and dead letters that an operator requeues.

service              `DeferredService`: builds the execution side, starts, reloads and stops all parts
state                what intake and execution share; built before both
intake               stores a call as deferred or as a dead letter; the proxy calls it
status_api           `/v1/llm-guard/calls/ID`: a client polls a deferred call and fetches its response
worker               takes due calls from the store and runs them, a few at a time
running_calls        the calls that run in this process, and how they are cancelled
execution            one round: executes a stored call through the gateway
deadlines            deadlines on the monotonic clock, immune to changes of the wall clock
maintenance          renews leases, recovers calls of dead gateways, deletes expired ones
completion_webhooks  webhooks of calls that are over
store_client         asynchronous access to the store
serialization        converts between a call and its stored form
credentials          the callers' credentials, which stay in memory
counters             counters for the metrics
operator_events      events for operators, aggregated
"""
