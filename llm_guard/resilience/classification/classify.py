"""Classifies an upstream's error: from the response to a failure kind.

Evidence in order of precedence: the config's rules, the provider's codewords, its sentence, words that repeat the
status, the status. Bodies are read by `resilience.classification.error_body` and
`resilience.classification.in_band_errors`, the meaning of words is in `resilience.classification.vocabulary`;
`resilience.retry.decision` decides what follows. Nothing is matched over a whole body: request ids, echoed prompts and
masked keys contain "429" and "timeout" too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from llm_guard.outcome import FailureKind, Signal, Source
from llm_guard.resilience.classification.error_body import (
    MAX_BODY_BYTES,
    ErrorBody,
    Layer,
    read_body,
    read_value,
    sentence_of,
)
from llm_guard.resilience.classification.error_codes import plain_code
from llm_guard.resilience.classification.in_band_errors import error_in, error_in_answer, error_in_events
from llm_guard.resilience.classification.phrase_match import words_of
from llm_guard.resilience.classification.retry_after import hint_s, retry_after
from llm_guard.resilience.classification.rules import ClassificationRule, RuleBook, UserRule
from llm_guard.resilience.classification.unsatisfiable_limit import is_over_limit
from llm_guard.resilience.classification.vocabulary import RULES
from llm_guard.resilience.classification.vocabulary.engines import MARKS, SELF_HOSTED
from llm_guard.resilience.classification.vocabulary.families import family_of_headers
from llm_guard.resilience.classification.vocabulary.statuses import OF_STATUS, STATUS_OF
from llm_guard.resilience.classification.vocabulary.transport import OF_KIND as KIND_OF_NETWORK
from llm_guard.resilience.classification.vocabulary.transport import RULES as NETWORK_RULES

__all__ = [
    "MAX_BODY_BYTES",
    "Classification",
    "Evidence",
    "classify",
    "classify_answer",
    "classify_event",
    "classify_network",
    "retry_after",
]

LONGEST_RETRY_S = 120.0
"""A longer wait than this is a reason to try another deployment (openai-python's own limit)."""

_LIMITS = frozenset({
    FailureKind.RATE_LIMIT, FailureKind.QUOTA_EXHAUSTED, FailureKind.WINDOW_EXHAUSTED, FailureKind.OVERLOADED,
})  # fmt: skip
_RATES = frozenset({FailureKind.RATE_LIMIT, FailureKind.PAYLOAD_TOO_LARGE})
_LARGER: dict[int | None, FailureKind] = {400: FailureKind.DEPLOYMENT_PAYLOAD, 413: FailureKind.DEPLOYMENT_PAYLOAD}
_LONG_WINDOW_S = 3600.0
"""No window of a minute requires a wait this long, despite its name (Azure, "retry after 86400 seconds")."""
_WRAPPERS = frozenset({424, 500, 502})
"""Statuses under which a gateway passes on an error that has a status of its own."""
_QUOTES_ECHO = frozenset({400, 413, 422})


@dataclass(frozen=True, slots=True)
class Evidence:
    """All evidence of one failed exchange. `headers` with lower-case names."""

    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | str = b""
    events: Sequence[str] | None = None
    """Events of a stream, as received; `<EOF>` where the connection ended."""
    network_kind: str | None = None
    """The step that failed, if there is no response: a key of `vocabulary.transport.OF_KIND`, or "" if unknown."""
    family: str = ""
    """The family of the upstream's error words (`vocabulary.families`); "" if unknown."""


@dataclass(frozen=True, slots=True)
class Classification:
    """The meaning of an upstream's error, with the evidence for it."""

    kind: FailureKind
    retry_after_s: float | None
    """The provider's hint: > 0, or None."""
    why: str
    """The decisive evidence, to be read by people."""
    status: int
    """HTTP status for the client: the response's own, or for an error event the one it should have had."""
    is_final: bool = False
    """True if the response has `x-should-retry: false`, which both official SDKs give precedence over the status."""
    message: str = ""
    """The provider's own sentence."""

    @property
    def is_retriable(self) -> bool:
        """True if the same deployment can be expected to serve the request within two minutes."""
        return not self.is_final and self.kind.is_retriable and (self.retry_after_s or 0) <= LONGEST_RETRY_S

    @property
    def counts_against_breaker(self) -> bool:
        """True if it is evidence that the deployment is unhealthy for all calls."""
        return self.kind.signal is Signal.UNHEALTHY and self.kind.source is Source.UPSTREAM


def classify(
    evidence: Evidence, wall: float, rules: Sequence[UserRule] = (), book: RuleBook = RULES
) -> Classification | None:  # fmt: skip
    """Classifies an exchange; None: nothing in it is an error. `wall` in epoch seconds; `book` differs from the
    built-in one only when the classifier is measured. Never raises."""
    if evidence.network_kind is not None:
        return _network_verdict(evidence)
    status = evidence.status or 200
    if evidence.events is not None and status < 400:
        found = error_in_events(evidence.events, family=evidence.family)
    elif status < 300:
        found = error_in_answer(evidence.body, status, family=evidence.family)
    elif status < 400:
        return Classification(FailureKind.MISROUTED, None, f"status {status}", status)
    else:
        return _verdict(evidence, read_body(evidence.body), wall, rules, book)
    if found is None:
        return None
    if found.kind is not None:
        return Classification(found.kind, None, found.why, STATUS_OF.get(found.kind, 500))
    if found.is_transport:
        return _network_verdict(Evidence(body=str(found.payload)))
    said = read_body(found.payload) if isinstance(found.payload, str) else read_value(found.payload)
    return _verdict(evidence, said, wall, rules, book)


def classify_network(network_kind: str, message: str) -> Classification:
    """Classifies an exchange without a response, by what broke (a key of `transport.OF_KIND`, or "") and by the HTTP
    client's message. Never raises."""
    return _network_verdict(Evidence(body=message, network_kind=network_kind))


def classify_answer(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    wall: float,
    family: str = "",
    rules: Sequence[UserRule] = (),
) -> Classification:
    """Classifies an HTTP error response (status >= 400). `headers` with lower-case names; `wall` in epoch seconds."""
    return _verdict(Evidence(status, headers, body, family=family), read_body(body), wall, rules)


def classify_event(data: bytes, wall: float = 0.0, family: str = "", rules: Sequence[UserRule] = ()) -> Classification:
    """Classifies a known error inside a stream, or of a 200 body. Never raises."""
    text = data[: MAX_BODY_BYTES * 4].decode("utf-8", "replace")
    evidence = Evidence(200, body=text, family=family)
    try:
        found = error_in(json.loads(text))
    except (ValueError, RecursionError):
        found = None
    if found is not None and found.kind is not None:
        return Classification(found.kind, None, found.why, STATUS_OF.get(found.kind, 500))
    said = read_body(text) if found is None else read_value(found.payload)
    return _verdict(evidence, said, wall, rules)


def _verdict(
    evidence: Evidence, said: ErrorBody, wall: float, rules: Sequence[UserRule], book: RuleBook = RULES
) -> Classification:  # fmt: skip
    headers = evidence.headers
    status = _status(evidence.status or 200, said)
    family = _family(evidence, said)
    _add_header_codes(headers, said)
    layers = [(layer, sentence_of(layer, without_quotes=status in _QUOTES_ECHO)) for layer in said.layers]
    reading = _by_rule(layers, status, family, rules, book)
    if reading is None:
        reading = _by_status(status, family, said, evidence.headers) or _UNKNOWN
    kind, why = reading.kind, reading.why
    if kind is FailureKind.CONTEXT_LENGTH and family in SELF_HOSTED and not why.startswith("code "):
        kind = FailureKind.DEPLOYMENT_CONTEXT  # by its message; codes of self-hosted engines have rows of their own
    if kind in _RATES and any(is_over_limit(layer.message) for layer in said.layers):
        kind, why = _LARGER.get(status, FailureKind.OVER_LIMIT), "a request larger than the limit"
    wait_s = _wait_s(kind, headers, said, wall)
    if kind is FailureKind.QUOTA_EXHAUSTED and status == 402 and 0 < (wait_s or 0) <= LONGEST_RETRY_S:
        kind = FailureKind.RATE_LIMIT  # credit reserved by running calls: an invoice is not paid in two minutes
    elif reading.soon is not None and wait_s is not None and wait_s <= LONGEST_RETRY_S:
        kind = reading.soon
    elif kind is FailureKind.RATE_LIMIT and wait_s is not None and wait_s >= _LONG_WINDOW_S:
        kind = FailureKind.WINDOW_EXHAUSTED
    says = headers.get("x-should-retry", "").strip().lower()
    if says == "true" and reading.is_weak and not kind.is_retriable:
        kind, why = FailureKind.TRANSIENT, f"x-should-retry: true, against {why}"
    return Classification(
        kind, wait_s, why, _status_to_say(evidence.status, status, kind), says == "false", said.message
    )


def _status_to_say(answered: int | None, named: int | None, kind: FailureKind) -> int:
    """Returns the status to report: a response keeps its own; an error without one gets the one it names, unless that
    means "do not retry" for a retriable kind (vLLM reports a dead engine as code 400 inside a stream)."""
    if answered is not None and answered >= 400:
        return answered
    if named is None or (kind.is_retriable and named in (400, 422)):
        return STATUS_OF.get(kind, 500)
    return named


class _Reading(NamedTuple):
    kind: FailureKind
    why: str
    is_weak: bool = False
    """True if the evidence is only the status, or a word that repeats it."""
    soon: FailureKind | None = None
    """The kind to use instead if the wait turns out to be short."""


_UNKNOWN = _Reading(FailureKind.SERVER_ERROR, "an unknown error", is_weak=True)


def _by_rule(
    layers: Sequence[tuple[Layer, str]],
    status: int | None,
    family: str,
    rules: Sequence[UserRule],
    book: RuleBook,
) -> _Reading | None:
    for user_rule in rules:
        for layer, words in layers or ((Layer(), ""),):
            if user_rule.fits(layer, words, status):
                return _Reading(user_rule.kind, "a rule in upstreams.X.errors")
    rule = book.find(layers, status, family)
    return None if rule is None else _Reading(rule.kind, _why(rule), rule.is_weak, rule.soon)


def _by_status(status: int | None, family: str, said: ErrorBody, headers: Mapping[str, str]) -> _Reading | None:
    if status is None:
        return None
    return _Reading(_kind_of_status(status, family, said, headers), f"status {status}", is_weak=True)


def _status(answered: int, said: ErrorBody) -> int | None:
    """Returns the status that counts: the response's own, or under a wrapper's or a success the one named inside."""
    if answered < 400:
        return said.quoted_status or said.status
    if answered in _WRAPPERS:
        return said.quoted_status or said.status or answered
    if answered == 400 and said.quoted_status == 429:
        return 429  # a proxy that reports every failure as a bad request; no other quoted status is believed there
    return answered


def _kind_of_status(status: int, family: str, said: ErrorBody, headers: Mapping[str, str]) -> FailureKind:
    is_from_edge = said.shape != "json"
    if status == 404 and is_from_edge and said.shape != "empty":
        return FailureKind.WRONG_PATH
    if status == 404 and [layer.message for layer in said.layers] in (["Not Found"], ["404 Not Found"]):
        return FailureKind.WRONG_PATH  # a framework's own message, not an API's (FastAPI, Flask)
    if status == 413 and is_from_edge and (not family or family in SELF_HOSTED):
        return FailureKind.DEPLOYMENT_PAYLOAD
    if status == 400 and said.shape == "html":
        return FailureKind.MISROUTED  # a proxy's page, not an API's response
    if status == 503 and said.shape == "html" and "nginx" in headers.get("server", said.message).lower():
        return FailureKind.OVERLOADED
    if status in (502, 503, 520) and said.shape == "html":
        return FailureKind.EDGE_ERROR
    default = FailureKind.SERVER_ERROR if status >= 500 else FailureKind.INVALID_REQUEST
    return OF_STATUS.get(status, default)


def _add_header_codes(headers: Mapping[str, str], said: ErrorBody) -> None:
    """Adds codewords from headers to the outermost layer."""
    codes = set()
    if error_type := headers.get("x-amzn-errortype"):
        plain = plain_code(error_type.partition(":")[0])
        codes |= {plain, f"aws{plain}"}
    if headers.get("cf-mitigated"):
        codes.add("cloudflare1020")
    if headers.get("x-envoy-overloaded"):
        codes.add("overloaded")
    if not codes:
        return
    if not said.layers:
        said.layers.append(Layer())
    said.layers[0].codes |= codes


def _family(evidence: Evidence, said: ErrorBody) -> str:
    if evidence.family in ("", "local", "edge"):
        for layer in said.layers:
            for mark, family in MARKS.items():
                if mark in layer.codes:
                    return family
    return evidence.family or family_of_headers(evidence.headers)


def _wait_s(kind: FailureKind, headers: Mapping[str, str], said: ErrorBody, wall: float) -> float | None:
    is_limit = kind in _LIMITS
    if not (kind.is_retriable or is_limit):
        return None
    wait_s = hint_s(headers, said, wall, is_limit=is_limit)
    return (round(wait_s, 6) or None) if wait_s else None


def _why(rule: ClassificationRule) -> str:
    if rule.sense is not None:
        return f"its topic ({rule.source.partition(': ')[2] or rule.source})"
    words = f"code {rule.code}" if rule.code else ""
    phrase = f'the phrase "{rule.message.strip("* ")}"' if rule.message else ""
    return " and ".join(filter(None, (words, phrase)))


# No response


def _network_verdict(evidence: Evidence) -> Classification:
    body = evidence.body
    message = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    known = KIND_OF_NETWORK.get(evidence.network_kind or "")
    layer = Layer(message=message[:2000])
    rule = NETWORK_RULES.find([(layer, words_of(message))], None, evidence.network_kind or "")
    kind = known or (rule.kind if rule else FailureKind.NETWORK)
    why = f"network: {evidence.network_kind}" if evidence.network_kind else "no response"
    if rule is not None and _refines(rule.kind, kind):
        kind, why = rule.kind, _why(rule)
    return Classification(kind, None, why, STATUS_OF.get(kind, 502), message=message[:300])


def _refines(said: FailureKind, known: FailureKind) -> bool:
    """Returns whether the message may correct the phase: a certificate is a TLS failure, a timeout is not a DNS
    failure."""
    return (known, said) in _REFINEMENTS


_REFINEMENTS = frozenset({
    (FailureKind.NETWORK, FailureKind.CERTIFICATE),
    (FailureKind.NETWORK, FailureKind.MISROUTED),
    (FailureKind.NETWORK, FailureKind.RETIRED),
    (FailureKind.NETWORK, FailureKind.OWN_RESOURCES),
    (FailureKind.EGRESS, FailureKind.PERMISSION),
    (FailureKind.EGRESS, FailureKind.AUTH),
})  # fmt: skip
