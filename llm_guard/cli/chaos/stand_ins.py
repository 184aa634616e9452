"""Replaces the upstreams of a config by local stand-ins, and leaves the rules of its models as they are."""

from __future__ import annotations

from collections.abc import Mapping

from llm_guard.config import Config, UpstreamConfig
from llm_guard.dialects import DIALECTS
from llm_guard.resilience.degradation.deferred import DeferredSettings

KEY = "sk-stand-in"
LEFT_OUT = (
    "client keys, caches, deferred calls, engines, webhooks, exports, the fleet's store: each gateway is alone, and "
    "nothing leaves this machine"
)
"""What is not played."""


def on_stand_ins(config: Config, urls: Mapping[str, str], folder: str) -> Config:
    """Returns the config with these addresses by upstream, and its state in `folder`."""
    server = config.server.model_copy(
        update={
            "host": "127.0.0.1", "port": 0, "tls": None, "client_keys": (), "isolate_objects": False, "drain": 1.0,
            "drain_delay": 0.0,
        }
    )  # fmt: skip
    ops = config.ops.model_copy(
        update={
            "port": None, "store": folder, "webhooks": (),
            "traces": config.ops.traces.model_copy(update={"endpoint": None}),
            "metrics": config.ops.metrics.model_copy(update={"otlp": None}),
        }
    )  # fmt: skip
    store = config.store.model_copy(
        update={
            "webhooks": (),
            "cache": config.store.cache.model_copy(update={"kind": "memory"}),
            "calls": config.store.calls.model_copy(update={"kind": "sqlite"}),
            "objects": config.store.objects.model_copy(update={"kind": "sqlite"}),
        }
    )  # fmt: skip
    plain = {"cache": None, "dead_letter": "off", "deferred": DeferredSettings(mode="off")}
    models = {name: model.model_copy(update=plain) for name, model in config.models.items()}
    upstreams = {name: _stand_in(upstream, urls[name]) for name, upstream in config.upstreams.items()}
    parts = {"server": server, "ops": ops, "store": store, "models": models, "upstreams": upstreams}
    return config.model_copy(update={**parts, "fleet": None, "engines": {}})


def _stand_in(upstream: UpstreamConfig, url: str) -> UpstreamConfig:
    own = KEY if upstream.has_own_key else None
    address = f"{url}{DIALECTS[upstream.dialect].PATH_IN_BASE_URL}"
    update = {"base_url": address, "api_key": own, "api_key_file": None, "api_keys": (), "tls": None, "auth": "bearer"}
    return upstream.model_copy(update=update)
