"""Gateways between a client and a provider: they wrap errors, and have some of their own."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "OpenRouter, Errors; limits",
        coded(Kind.RATE_LIMIT, "in_flight_budget_exhausted openrouter_in_flight_budget", statuses=[0, 402, 429]),
        coded(Kind.CONTENT_POLICY, "flagged"),
        coded(Kind.OVERLOADED, "provider_overloaded"),
        coded(Kind.SERVER_ERROR, "provider_unavailable", is_weak=True),
        said(Kind.OVERLOADED, "no available model provider | no available provider"),
        said(Kind.RATE_LIMIT, "in flight budget | in flight requests", statuses=[0, 402, 429]),
        said(Kind.RATE_LIMIT, "rate limited upstream | limit_rpm | free models per min"),
        said(Kind.WINDOW_EXHAUSTED, "free models per day | limit_rpd"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            requires more credits | key limit exceeded | never purchased credits | insufficient credits |
            can only afford | prompt tokens limit exceeded
            """,
        ),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            no endpoints found | no allowed providers are available | not a valid model id | no endpoints available
            """,
            statuses=[0, 400, 404, 503],
        ),
        said(Kind.CONTENT_POLICY, "requires moderation | your input was flagged"),
        said(Kind.AUTH, "no auth credentials found | user not found | no cookie auth credentials", statuses=[0, 401]),
        said(Kind.SERVER_ERROR, "provider returned error | provider finish_reason error | streaming response failed"),
        said(Kind.TIMEOUT, "upstream idle timeout"),
        said(Kind.NETWORK, "upstream error | network connection lost", statuses=[0, 502]),
    ),
    *cited(
        "LiteLLM proxy, Exception mapping",
        coded(Kind.CONTEXT_LENGTH, "ContextWindowExceededError"),
        coded(Kind.CONTENT_POLICY, "ContentPolicyViolationError"),
        coded(Kind.QUOTA_EXHAUSTED, "budget_exceeded BudgetExceededError ExceededBudget"),
        coded(Kind.AUTH, "token_not_found_in_db key_model_access_denied_auth expired_key"),
        coded(Kind.PERMISSION, "key_model_access_denied team_model_access_denied user_model_access_denied"),
        coded(Kind.OVERLOADED, "no_deployments_available"),
        coded(Kind.RATE_LIMIT, "RateLimitError throttling_error", is_weak=True, statuses=[0, 429, *range(500, 600)]),
        coded(Kind.MODEL_NOT_FOUND, "NotFoundError", message="model"),
        said(
            Kind.RATE_LIMIT,
            """
            no deployments available for selected model try again | crossed tpm rpm | max parallel request limit
            """,
        ),
        said(Kind.QUOTA_EXHAUSTED, "budget has been exceeded | exceededbudget | over budget"),
        said(Kind.AUTH, "no api key passed in | unable to find token in cache | invalid proxy server token"),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            invalid model name passed in | no healthy deployment | no deployments available for
            """,
        ),
        said(Kind.PERMISSION, "not allowed to access model | can only access models"),
    ),
    *cited(
        "Portkey, Vercel AI Gateway, Kong, API Management, OpenCode Zen, Cloudflare AI Gateway",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            CreditsError MonthlyLimitError UserLimitError GoUsageLimitError FreeUsageLimitError
            customer_verification_required
            """,
        ),
        coded(Kind.MODEL_NOT_FOUND, "ModelError", statuses=[401]),
        coded(Kind.AUTH, "AuthError"),
        said(Kind.RATE_LIMIT, "api rate limit exceeded | ai token rate limit exceeded"),
        said(
            Kind.AUTH,
            """
            no api key found in request | invalid authentication credentials |
            access denied due to missing subscription key | invalid api key portkey | invalid virtual key
            """,
        ),
        said(Kind.WRONG_PATH, "no route matched with those values"),
        said(
            Kind.SERVER_ERROR,
            """
            an invalid response was received from the upstream server | upstream server is currently unavailable |
            failure to get a peer from the ring balancer
            """,
        ),
        said(Kind.NETWORK, "failure to get a peer | all upstream providers failed"),
        said(Kind.TIMEOUT, "upstream server is timing out | exceeded the timeout sent in the request"),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            model * is disabled | not supported for format
            """,
            statuses=[0, 400, 401, 403, 404],
        ),
        said(Kind.PAYLOAD_TOO_LARGE, "request size limit exceeded"),
        said(
            Kind.CONTENT_POLICY,
            """
            guardrail checks * failed | blocked due to security configurations | hooks failed
            """,
        ),
    ),
    *cited(
        "Databricks, Snowflake Cortex, DigitalOcean, Replicate, Modal, RunPod: error references",
        coded(Kind.RATE_LIMIT, "REQUEST_LIMIT_EXCEEDED RESOURCE_EXHAUSTED_QPS 390142"),
        coded(Kind.MODEL_LOADING, "TEMPORARILY_UNAVAILABLE", message="scal"),
        coded(Kind.OVERLOADED, "TEMPORARILY_UNAVAILABLE"),
        coded(Kind.MODEL_NOT_FOUND, "RESOURCE_DOES_NOT_EXIST ENDPOINT_NOT_FOUND"),
        coded(Kind.PERMISSION, "PERMISSION_DENIED", is_weak=True, statuses=[0, 400, 403]),
        coded(Kind.MODEL_LOADING, "ENDPOINT_NOT_READY"),
        said(Kind.RATE_LIMIT, "output tokens per minute rate limit | user defined rate limit | queries per second"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            reached the free time limit | monthly spend limit | requires billing | negative balance
            """,
        ),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            endpoint * does not exist | serving endpoint * not found | the specified version does not exist
            """,
        ),
    ),
)
