"""The endpoints, one module for each subject.

overview, history       snapshots of everything; traffic of the last quarter of an hour
deployments, limits     operator actions on breakers and deployments; retry budgets and capacity
deployment_aggregation  breakers of the names under a pattern, as one label
health, probes, engines health of all parts, results of probes, engines
admission, explain      whether a call would be admitted now; how it would be routed
calls, dead_letters     finished and running calls; deferred calls and dead letters
cache, degraded         the response cache; degraded modes
chaos                   faults that operators inject into calls
alerts                  alerts, silences and webhooks
clients                 usage of client keys
restrictions            what refuses or delays calls, and its reset; caller_names: phrases for keys and callers
config, log_levels      the running config; log levels
login                   logs a browser in
parameters              parameters that several endpoints take
"""
