"""YAML -> frozen models; an error names file, line and key. The only folder that imports pydantic and yaml.

text      YAML and ${VAR}, every value with its line
names     how a model is found by its name
fields    ports, texts, secrets
operator  the operator's keys
alerts    alerts and webhooks among them
lasting   what is kept beyond a call
models    the keys and their ranges
errors    rules for an upstream's own error words
engines   engines of our own, and how they are brought back
api_keys  several keys for one upstream
tls       files with certificates
strict    what all parts have in common
checks    what holds between keys
reading   file -> Config, or every problem in it
trying    what can be said of a text without the environment
warnings  what is allowed and rarely meant
shown     a config without its secrets, and what another one changes
"""

from __future__ import annotations

from llm_guard.config.alerts import AlertRules, WebhookConfig, WebhookFormat
from llm_guard.config.api_keys import names_of as key_names
from llm_guard.config.clients import ClientKey
from llm_guard.config.engines import CommandConfig, ContainerConfig, EngineConfig, UnitConfig
from llm_guard.config.errors import ErrorRule
from llm_guard.config.lasting import CompletionWebhook, StoreConfig, sealing_keys
from llm_guard.config.models import (
    Auth,
    Config,
    DeploymentConfig,
    ModelConfig,
    Rules,
    Server,
    UpstreamConfig,
)
from llm_guard.config.names import is_name, is_pattern, matching_key, near_names
from llm_guard.config.operator import LogSettings, OperatorTokenConfig, Ops, TimelineSettings, TraceSettings
from llm_guard.config.reading import load_access, load_config, parse_config, problem_at
from llm_guard.config.shown import KeyChange, digest, key_changes, shown
from llm_guard.config.text import ConfigError, Problem, dotted
from llm_guard.config.text import Path as KeyPath
from llm_guard.config.tls import ServerTls, UpstreamTls
from llm_guard.config.trying import Tried, try_text
from llm_guard.config.warnings import warnings_of

__all__ = [
    "AlertRules",
    "Auth",
    "ClientKey",
    "CommandConfig",
    "CompletionWebhook",
    "Config",
    "ConfigError",
    "ContainerConfig",
    "DeploymentConfig",
    "EngineConfig",
    "ErrorRule",
    "KeyChange",
    "KeyPath",
    "LogSettings",
    "ModelConfig",
    "OperatorTokenConfig",
    "Ops",
    "Problem",
    "Rules",
    "Server",
    "ServerTls",
    "StoreConfig",
    "TimelineSettings",
    "TraceSettings",
    "Tried",
    "UnitConfig",
    "UpstreamConfig",
    "UpstreamTls",
    "WebhookConfig",
    "WebhookFormat",
    "digest",
    "dotted",
    "is_name",
    "is_pattern",
    "key_changes",
    "key_names",
    "load_access",
    "load_config",
    "matching_key",
    "near_names",
    "parse_config",
    "problem_at",
    "sealing_keys",
    "shown",
    "try_text",
    "warnings_of",
]
