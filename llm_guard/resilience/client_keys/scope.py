"""Scope of a client key: which paths it may call, and which models by the names in its requests.

Decides for one request. `proxy.caller_identity` writes the refusal; the owners of a provider's objects are
in `resilience.client_keys.object_owners`.

A path is judged as it is written and forwarded: only what is literally allowed passes, so that no other spelling of
a path (escapes, case, path parameters, a trailing slash) reaches more than the plain one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote

INFERENCE = "inference"
"""In `allow.paths`: the model calls of both dialects, count_tokens, and the list of models."""
ALL = "*"

MODEL_CALLS = frozenset({
    *(("POST", f"/v1/{path}") for path in (
        "chat/completions", "completions", "responses", "responses/input_tokens", "responses/compact", "embeddings",
        "moderations", "rerank", "score", "images/generations", "images/edits", "images/variations", "audio/speech",
        "audio/transcriptions", "audio/translations", "messages", "messages/count_tokens", "complete",
    )),
    ("GET", "/v1/realtime"),
})  # fmt: skip
"""Calls that request one model, by their body or, for `/v1/realtime`, by their query."""

OWN_CALLS = "/v1/llm-guard/"
"""Requests about deferred calls, and about the state of the key's models. The owner of a deferred call is checked where
it is served."""
_MODELS = "/v1/models"
_MODERATIONS = "/v1/moderations"
_READS = frozenset({"GET", "HEAD"})
_AMBIGUOUS = ("%", ";", "\\")
"""A server may decode these, or cut a segment at a semicolon: `/v1/models/..;/files` is `/v1/files` to Tomcat."""

ModelLocation = Literal["here", "elsewhere", "nowhere"]
"""Where the config routes a model: to the upstream that the path names, only to others, or nowhere."""


@dataclass(frozen=True, slots=True)
class KeyScope:
    """The `allow` setting of one client key."""

    models: tuple[str, ...] | None = None
    """Names, or their beginnings followed by `*`. None: every model of the config."""
    paths: tuple[str, ...] = (INFERENCE,)
    """Paths, or their beginnings followed by `*`; `inference` stands for the calls above."""
    allows_all_models: bool = field(init=False)
    """True if any model name is allowed, even one that the config does not have."""
    endpoints: frozenset[tuple[str, str]] = field(init=False)
    """Methods and paths of the model calls that are allowed; more paths may be."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "allows_all_models", self.models is not None and ALL in self.models)
        object.__setattr__(self, "endpoints", MODEL_CALLS if INFERENCE in self.paths else frozenset())

    def allows_path(self, method: str, path: str) -> bool:
        """Returns whether a request may be sent to `path`, which is without `/upstreams/NAME`."""
        if (method, path) in self.endpoints or (self.endpoints and _reads_models(method, path)):
            return True
        if any(mark in path for mark in _AMBIGUOUS) and model_in_path(path) is None:
            return False
        return path.startswith(OWN_CALLS) or matches(self.paths, path)

    def allows_model(self, model: str, sent: ModelLocation | None) -> bool:
        """Returns whether a call may name this model. `sent`: where the config routes it, for a call to
        `/upstreams/NAME`; None for any other call, which has a route only if the config does.

        A name that the config routes elsewhere may mean another model to the upstream of the path, so it needs `*`.
        """
        if self.allows_all_models:
            return True
        if sent == "elsewhere":
            return False
        return sent != "nowhere" if self.models is None else matches(self.models, model)

    def needs_model(self, method: str, path: str, *, is_upstream_named: bool) -> bool:
        """Returns whether a call must name its model: the provider's default may be one that is not allowed, and a body
        that the gateway does not read as JSON may name one nevertheless. Moderation calls usually name none."""
        if self.allows_all_models or (method, path) not in MODEL_CALLS:
            return False
        return self.models is not None or is_upstream_named or path != _MODERATIONS


def is_inference(method: str, path: str) -> bool:
    """Returns whether this is a model call, a token count, the list of models or one of its entries."""
    return (method, path) in MODEL_CALLS or _reads_models(method, path)


def _reads_models(method: str, path: str) -> bool:
    return method in _READS and (path == _MODELS or model_in_path(path) is not None)


def model_in_path(path: str) -> str | None:
    """Returns the model that `/v1/models/NAME` names; None for any other path. A slash in a name may be escaped."""
    if not path.startswith(f"{_MODELS}/"):
        return None
    name = unquote(path[len(_MODELS) + 1 :])
    is_plain = not any(mark in name for mark in _AMBIGUOUS)
    segments = name.split("/")
    return name if is_plain and name.isprintable() and not {"", ".", ".."} & {*segments} else None


def matches(patterns: Collection[str], text: str) -> bool:
    """Returns whether `text` equals a pattern, or begins with one that ends in `*`."""
    if text in patterns:
        return True
    return any(pattern.endswith("*") and text.startswith(pattern[:-1]) for pattern in patterns)
