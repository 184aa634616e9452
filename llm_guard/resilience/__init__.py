"""Pure decisions, one package per policy. Stateful policies take `now`, stateless ones a uniform draw `u`; none reads a
clock, draws random numbers, logs, locks or raises for an expected case. Settings are defined beside the policy that
they configure.

retry/            whether, where and when a failed call is tried again
circuit_breaker/  deployments and keys that are not tried for now
capacity/         concurrency, rates and wait queues of a deployment
throttling/       sends less where that makes fewer requests fail
routing/          the order of deployments, and what the client asks for
classification/   the meaning of errors
caching/          which responses are cached, and for how long
client_keys/      what client keys may do
streams/          settings of streams
translation/      settings of translated calls
health/           probes, health of deployments, restarts of engines
alerts/           when an alert fires and resolves
causes/           the last errors of providers, and the cause that restrictions and alerts have in common
degradation/      degraded mode and deferred calls
units             durations and sizes; memo: memoizes functions of short texts; bounded_map: evicts its oldest key
"""
