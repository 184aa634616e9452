"""Reads the YAML config into frozen models; errors name file, line and key. The only package that imports pydantic and
yaml.

syntax_errors  words errors of YAML
yaml_source    YAML and ${VAR}; records the line of every value
names          finds the entry of `models` for a model name
fields         value types (ports, texts, secrets), and the base class of all parts
operator       the `ops` section
alerts         alerts and webhooks of `ops`
storage        the `store` section
fleet          the `fleet` section
models         all other keys and their ranges
clients        the gateway's own client keys
clouds         credentials of clouds in place of an API key
errors         rules for an upstream's own error messages
engines        local inference engines and their restarts
api_keys       several keys for one upstream
tls            certificate files
upstreams      upstreams: address, credentials, form
workers        the number of worker processes, and what does not work with several
overrides      overrides from the command line
checks         constraints between keys
dialects       routes whose deployments have different dialects
loader         file -> Config, or a list of all problems
json_schema    the JSON Schema of the file, for editors
schema_rules   its parts that types do not give
dry_check      checks a text without the environment's values
warnings/      settings that are allowed but rarely intended
redaction      a config with secrets masked, and the difference between two
effective      the value of each key, and the line that sets it
"""

from __future__ import annotations

from llm_guard.config.alerts import AlertRules, WebhookConfig, WebhookFormat, WebhookTarget
from llm_guard.config.api_keys import names_of as key_names
from llm_guard.config.clients import ClientKey
from llm_guard.config.clouds import AwsSettings, CloudSettings, EntraSettings, GoogleSettings
from llm_guard.config.dialects import chat_routes, mixed_routes
from llm_guard.config.dry_check import DryCheckResult, try_text
from llm_guard.config.effective import EffectiveKey, EffectiveSections, KeyOrigin, effective_keys
from llm_guard.config.engines import CommandConfig, ContainerConfig, EngineConfig, UnitConfig
from llm_guard.config.errors import ErrorRule
from llm_guard.config.fleet import FleetConfig
from llm_guard.config.json_schema import config_schema
from llm_guard.config.loader import load_access, load_config, parse_config, problem_at
from llm_guard.config.loader import text_in as config_text
from llm_guard.config.models import (
    Config,
    DeploymentConfig,
    ModelConfig,
    Rules,
    Server,
)
from llm_guard.config.names import is_name, is_pattern, matching_key, near_names
from llm_guard.config.operator import (
    LogSettings,
    MetricsExportSettings,
    OperatorTokenConfig,
    Ops,
    RecentCallsSettings,
    TraceSettings,
)
from llm_guard.config.overrides import CommandLineOverrides
from llm_guard.config.redaction import KeyChange, digest, key_changes, shown
from llm_guard.config.storage import CompletionWebhook, StoreConfig, encryption_keys
from llm_guard.config.tls import ServerTls, UpstreamTls
from llm_guard.config.upstreams import Auth, UpstreamConfig
from llm_guard.config.warnings import located, warnings_of
from llm_guard.config.workers import worker_count
from llm_guard.config.yaml_source import ConfigError, ConfigProblem, Finding, KeyPath, dotted

__all__ = [
    "AlertRules",
    "Auth",
    "AwsSettings",
    "ClientKey",
    "CloudSettings",
    "CommandConfig",
    "CommandLineOverrides",
    "CompletionWebhook",
    "Config",
    "ConfigError",
    "ConfigProblem",
    "ContainerConfig",
    "DeploymentConfig",
    "DryCheckResult",
    "EffectiveKey",
    "EffectiveSections",
    "EngineConfig",
    "EntraSettings",
    "ErrorRule",
    "Finding",
    "FleetConfig",
    "GoogleSettings",
    "KeyChange",
    "KeyOrigin",
    "KeyPath",
    "LogSettings",
    "MetricsExportSettings",
    "ModelConfig",
    "OperatorTokenConfig",
    "Ops",
    "RecentCallsSettings",
    "Rules",
    "Server",
    "ServerTls",
    "StoreConfig",
    "TraceSettings",
    "UnitConfig",
    "UpstreamConfig",
    "UpstreamTls",
    "WebhookConfig",
    "WebhookFormat",
    "WebhookTarget",
    "chat_routes",
    "config_schema",
    "config_text",
    "digest",
    "dotted",
    "effective_keys",
    "encryption_keys",
    "is_name",
    "is_pattern",
    "key_changes",
    "key_names",
    "load_access",
    "load_config",
    "located",
    "matching_key",
    "mixed_routes",
    "near_names",
    "parse_config",
    "problem_at",
    "shown",
    "try_text",
    "warnings_of",
    "worker_count",
]
