"""A resilience proxy for LLM calls: the package of the distribution llm-guard-proxy.

A call passes through the code in a straight line; every decision is a pure function or a small state machine.

cli/             the command line, and `llm-guard demo`
app              composition root: start, reload, drain
config_reloader  the running config, and earlier ones for a rollback
config/          YAML -> frozen models
config_files     the files that a config names: routing.key_files, and tls; watched_files reloads them
routing/         model name -> route -> deployments, with the state kept of each; the lease that an attempt holds
outcome          failure kinds, refusals
clock            time and timers
trace_context    the header of W3C trace context
log/             log output
proxy/           the data plane: everything that handles calls
resilience/      resilience decisions, as pure functions and state machines
dialects/        the wire formats of providers
storage/         data that outlives the process
upstreams/       probes of upstreams, and restarts of engines
deferred/        calls that no client waits for: deferred calls, and requeued dead letters
webhooks/        delivery of webhooks
admin/           the control plane: the admin API, metrics, alerts and the dashboard
mock/            a provider that misbehaves on request
"""

import gc

_is_collecting = gc.isenabled()
gc.disable()  # nothing that is imported is garbage: looking for it took a tenth of the start
try:
    from llm_guard.app import create_app
    from llm_guard.config import Config, load_config
    from llm_guard.version import __version__
finally:
    if gc.get_freeze_count() == 0:  # else the program that imports this has frozen objects of its own
        gc.freeze()
        gc.unfreeze()  # into the oldest generation: the next collection would look at all of them, for 60 ms
    if _is_collecting:
        gc.enable()

__all__ = ["Config", "__version__", "create_app", "load_config"]
