"""Settings of a route for calls that deployments of another dialect serve. `dialects.translation` translates them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal

from llm_guard.resilience.units import Count, Unit

_NAME = r"[a-z][a-z0-9_.]*"


def parse_drop(value: object) -> str | tuple[str, ...]:
    """Parses `hints`, `nothing`, or a list of names; raises ValueError."""
    if value in ("hints", "nothing"):
        return str(value)
    if isinstance(value, list | tuple) and all(isinstance(name, str) and re.fullmatch(_NAME, name) for name in value):
        return tuple(value)
    raise ValueError("must be hints, nothing, or a list of names such as [n, logprobs]")


_DROP = {"anyOf": [{"enum": ["hints", "nothing"]}, {"type": "array", "items": {"type": "string", "pattern": _NAME}}]}
DropRule = Annotated[str | tuple[str, ...], Unit(parse_drop, _DROP)]


@dataclass(frozen=True, slots=True)
class TranslateSettings:
    drop: DropRule = "hints"
    """What a translated request may lose. hints: fields without which no contract breaks, such as seed; nothing: a
    deployment that cannot express all of the request is not tried; a list: hints, and the fields that it names."""
    max_tokens: Count = 32_000
    """Output limit for an endpoint that requires one, where the request has none."""
    reasoning: Literal["hide", "show"] = "hide"
    """show: reasoning reaches the client, in chats as `reasoning_content`, in Responses as a summary, in Messages as
    thinking without a signature. OpenAI refuses such a summary in a later request, and Anthropic such thinking."""
