"""YAML -> frozen models; an error names file, line and key. The only folder that imports pydantic and yaml.

text      YAML and ${VAR}, every value with its line
names     how a model is found by its name
fields    ports, texts, secrets
operator  the operator's keys
models    the keys and their ranges
errors    rules for an upstream's own error words
strict    what all parts have in common
checks    what holds between keys
reading   file -> Config, or every problem in it
"""

from __future__ import annotations

from llm_guard.config.errors import ErrorRule
from llm_guard.config.models import (
    Auth,
    ClientKey,
    Config,
    DeploymentConfig,
    ModelConfig,
    Rules,
    Server,
    UpstreamConfig,
)
from llm_guard.config.names import is_name, is_pattern, matching_key, near_names
from llm_guard.config.operator import Ops, TimelineSettings
from llm_guard.config.reading import load_config, parse_config
from llm_guard.config.text import ConfigError, Problem

__all__ = [
    "Auth",
    "ClientKey",
    "Config",
    "ConfigError",
    "DeploymentConfig",
    "ErrorRule",
    "ModelConfig",
    "Ops",
    "Problem",
    "Rules",
    "Server",
    "TimelineSettings",
    "UpstreamConfig",
    "is_name",
    "is_pattern",
    "load_config",
    "matching_key",
    "near_names",
    "parse_config",
]
