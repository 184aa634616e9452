"""Warnings of `llm-guard check` about settings that are allowed but rarely intended; the gateway runs with them.
Settings that are refused are in `config.checks`.

collection  all warnings of a config, each at its line of the file
addresses   base URLs, and listeners that strangers can reach
durations   timeouts that contradict each other; retries that do not fit into a call's time
routes      deployments and fallbacks that cannot help; models of client keys
context     fallbacks with a smaller context than the model's own
secrets     short tokens, and secrets in files that others can read
state       the state folder: not writable, writable by others, not shared
workers     what several workers do each for itself
"""

from __future__ import annotations

from llm_guard.config.warnings.collection import located, warnings_of

__all__ = ["located", "warnings_of"]
