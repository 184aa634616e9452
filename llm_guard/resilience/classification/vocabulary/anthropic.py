"""Anthropic: the API and subscriptions."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "Anthropic, API errors; rate limits; bodies reported by users of the API",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            enforced_spend_limit_reached billing_error credit_balance_too_low workspace_spend_limit_reached
            spend_limit_reached
            """,
        ),
        coded(Kind.PAYLOAD_TOO_LARGE, "request_too_large"),
        coded(Kind.CONTENT_POLICY, "output_blocked refusal"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            credit balance is too low | reached your specified | api usage limits | crossed its monthly |
            usage limit for this 5 hour window | hour window | exceed your account s usage | extra usage |
            will regain access on | your limit will reset | exceeded your usage limit | hit your * limit
            """,
        ),
        said(
            Kind.PERMISSION,
            """
            long context beta is not yet available | usage credits are required for |
            extra usage is required for long context | not available for this subscription |
            credential is only authorized for use with | not currently allowed | not allowed for this organization
            """,
            statuses=[0, 400, 401, 403, 429],
        ),
        said(Kind.ACCOUNT_BLOCKED, "this organization has been disabled | organization does not have access"),
        said(
            Kind.AUTH,
            """
            invalid x api key | x api key header is required | invalid bearer token | oauth token has expired |
            oauth authentication | expected either x api key
            """,
        ),
        said(Kind.CONTENT_POLICY, "output blocked by content filtering policy | request contains prohibited content"),
        said(
            Kind.RATE_LIMIT,
            """
            exceed your organization s rate limit | exceed the rate limit for your organization |
            per minute rate limit | acceleration limit | number of concurrent connections |
            temporarily limiting requests
            """,
        ),
        said(Kind.INVALID_REQUEST, "which is the maximum allowed number of output tokens | credit card"),
        said(Kind.MODEL_NOT_FOUND, "model * reached end of life"),
    ),
)
