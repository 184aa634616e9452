"""The cause of restrictions and alerts: they belong to one incident if they have the same upstream and kind of failure,
and overlap in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from llm_guard.outcome import Category

CauseKind = Literal[
    "outage", "credential", "quota", "rate_limit", "configuration", "capacity", "override", "client", "model", "gateway"
]
"""outage: the upstream fails or is slow; credential: it refuses the key; quota: the account has none left; rate_limit:
it limits the rate; configuration: it does not know the path or the model; capacity: a limit of the gateway's own is
reached; override: an operator or the config keeps calls away; client: one client only; model: calls of one model, while
no upstream fails; gateway: the gateway itself."""

_KINDS: dict[Category, CauseKind] = {
    "auth": "credential",
    "permission": "credential",
    "quota_exhausted": "quota",
    "rate_limit": "rate_limit",
    "model_not_found": "configuration",
    "not_found": "configuration",
    "invalid_request": "configuration",
}
"""Kinds of the categories of errors; all others are an outage."""


@dataclass(frozen=True, slots=True)
class IncidentCause:
    """A cause. Restrictions and alerts with equal causes belong to one incident."""

    kind: CauseKind
    subject: str
    """The upstream, deployment, model or client concerned; for the gateway itself the part of it."""

    @property
    def key(self) -> str:
        """The cause as one word of a payload, e.g. `outage:openai`."""
        return f"{self.kind}:{self.subject}"


def parsed(key: str) -> IncidentCause | None:
    """Returns the cause with this key; None if there is no such kind."""
    kind, _, subject = key.partition(":")
    found = next((known for known in get_args(CauseKind) if known == kind), None)
    return None if found is None else IncidentCause(found, subject)


def main_category(categories: Sequence[Category]) -> Category:
    """Returns the most frequent category, of equally frequent ones the first; `categories` must not be empty."""
    return Counter(categories).most_common(1)[0][0]


def kind_of(categories: Sequence[Category], otherwise: CauseKind = "outage") -> CauseKind:
    """Returns the kind of the last errors of an upstream, the newest first; `otherwise` without any."""
    return _KINDS.get(main_category(categories), "outage") if categories else otherwise
