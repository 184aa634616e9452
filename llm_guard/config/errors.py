"""`upstreams.X.errors`: meanings of an upstream's own error messages that the built-in tables do not know.

Defines how a rule is written, and its ranges. Rules are matched in `resilience.classification.rules`.
"""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from llm_guard.config.fields import Strict
from llm_guard.config.names import did_you_mean
from llm_guard.outcome import FailureKind, Source
from llm_guard.resilience.classification.rules import UserRule, user_rule

_NOT_AN_ANSWER = ("timeout", "network", "truncated", "malformed")
MEANINGS = {
    kind.label: kind
    for kind in FailureKind
    if kind.source is Source.UPSTREAM and kind.label not in _NOT_AN_ANSWER
} | {"timeout": FailureKind.TIMEOUT}  # fmt: skip
"""The failure kinds that a response can mean. Excludes broken connections, which have no message."""


def _meaning(value: object) -> FailureKind:
    kind = MEANINGS.get(value) if isinstance(value, str) else None
    if kind is None:
        hint = did_you_mean(value, MEANINGS) if isinstance(value, str) else f"; known: {', '.join(MEANINGS)}"
        raise PydanticCustomError("config", "{reason}", {"reason": f"is not a failure kind{hint}"})
    return kind


def _statuses(value: object) -> object:
    """Reads `429`, `5xx`, or a list of them."""
    found: set[int] = set()
    for status in value if isinstance(value, list) and value else [value]:
        text = str(status)
        if re.fullmatch("[45]xx", text):
            found.update(range(int(text[0]) * 100, int(text[0]) * 100 + 100))
        elif re.fullmatch("[45][0-9][0-9]", text) and not isinstance(status, bool):
            found.add(int(text))
        else:
            reason = "must be an error status such as 429, a class such as 5xx, or a list of them"
            raise PydanticCustomError("config", "{reason}", {"reason": reason})
    return frozenset(found)


_STATUS = {
    "anyOf": [
        {"type": "integer", "minimum": 400, "maximum": 599},
        {"type": "string", "pattern": "^[45](?:xx|[0-9][0-9])$"},
    ]
}
_STATUSES = {"anyOf": [_STATUS, {"type": "array", "items": _STATUS, "minItems": 1}]}
MatchText = Annotated[str, Field(min_length=1, max_length=200)]


class ErrorWhen(Strict):
    """Conditions that must all hold: status, the body's `code` and `type` in any spelling, a pattern of its message."""

    status: Annotated[frozenset[int], BeforeValidator(_statuses), WithJsonSchema(_STATUSES)] = frozenset()
    """An error status such as 429, a class such as 5xx, or a list of them."""
    code: MatchText | None = None
    """The error body's `code`, in any spelling."""
    type: MatchText | None = None
    """The error body's `type`, in any spelling."""
    message: MatchText | None = None
    """Words, with `*` for any text; case and punctuation do not matter. Not a regular expression."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            _rule(self, FailureKind.SERVER_ERROR)
        except ValueError as error:
            raise PydanticCustomError("config", "{reason}", {"reason": str(error)}) from None
        return self


class ErrorRule(Strict):
    match: ErrorWhen
    """Conditions that must all hold."""
    kind: Annotated[FailureKind, BeforeValidator(_meaning), WithJsonSchema({"enum": list(MEANINGS)})]
    """The failure kind that the error means."""

    def compiled(self) -> UserRule:
        """The rule in the classifier's form."""
        return _rule(self.match, self.kind)


def _rule(when: ErrorWhen, kind: FailureKind) -> UserRule:
    return user_rule(
        kind, statuses=when.status, code=when.code or "", type_=when.type or "", message=when.message or ""
    )
