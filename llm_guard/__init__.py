"""A resilience proxy for LLM calls: the package of the distribution llm-guard-proxy.

A call walks through the code in one straight line; every decision is a pure function or a small state machine.

cli          the command line
app          composition root: start, reload, drain
reloads      which config runs, and those before it
config       YAML -> frozen models
routes       model name -> route -> deployments
pool         deployments and budgets, over reloads
deployment   whom a call can be sent to, and what is known of it
api_keys     the keys of an upstream that has several
config_files the files that a config names: key_files, and tls; watched_files follows them
request_body the body of a request, whole or still arriving, as an interface
call         the nouns of one call
outcome      failure kinds, refusals
clock        the only reader of time
log          where log lines go
gateway/     the way of one call, its files in the order in which a call meets them
policy/      pure decisions
dialect/     what each provider's bytes mean
store/       what outlives the process
health/      what watches upstreams, and brings engines back
errands/     calls that no client waits for: answered later, or asked again
ops/         the operator's side
mock/        a provider that misbehaves on request
demo         gateway and mock together, to see the point
"""

from llm_guard.app import create_app
from llm_guard.config import Config, load_config
from llm_guard.version import __version__

__all__ = ["Config", "__version__", "create_app", "load_config"]
