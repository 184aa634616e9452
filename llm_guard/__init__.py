"""A resilience proxy for LLM calls: the package of the distribution llm-guard-proxy.

A call passes through the code in a straight line; every decision is a pure function or a small state machine.

cli          the command line
app          composition root: start, reload, drain
reloads      the running config, and earlier ones for a rollback
config       YAML -> frozen models
routes       model name -> route -> deployments
pool         deployments and budgets, kept over reloads
deployment   upstreams and deployments, with the state kept of each
api_keys     the keys of an upstream that has several
config_files the files that a config names: key_files, and tls; watched_files reloads them
request_body interfaces of a request body, complete or still arriving
call         the data of one call
outcome      failure kinds, refusals
leave        the lease that an attempt holds
clock        time and timers
log          log output
gateway/     the proxy: everything that handles calls
policy/      resilience decisions, as pure functions and state machines
dialect/     the wire formats of providers
store/       data that outlives the process
health/      probes of upstreams, and restarts of engines
errands/     calls that no client waits for: deferred calls, and requeued dead letters
ops/         the admin API, metrics, alerts and the dashboard
mock/        a provider that misbehaves on request
demo         gateway and mock together, as a demonstration
"""

from llm_guard.app import create_app
from llm_guard.config import Config, load_config
from llm_guard.version import __version__

__all__ = ["Config", "__version__", "create_app", "load_config"]
