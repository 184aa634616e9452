"""Providers of hosted models with more or less OpenAI's dialect."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "Groq, Error codes; rate limits; bodies in public issues",
        coded(Kind.QUOTA_EXHAUSTED, "blocked_api_access"),
        coded(Kind.BAD_SAMPLE, "tool_use_failed json_validate_failed"),
        coded(Kind.MODEL_NOT_FOUND, "model_decommissioned model_terms_required_missing"),
        coded(Kind.PERMISSION, "model_terms_required model_permission_blocked_org model_permission_blocked_project"),
        coded(Kind.AUTH, "mcp_authentication_failed", statuses=[401, 403, 424]),
        coded(Kind.ACCOUNT_BLOCKED, "organization_restricted"),
        said(
            Kind.WINDOW_EXHAUSTED,
            """
            on tokens per day | on requests per day | on audio seconds per day
            """,
            families="groq",
        ),
        said(Kind.OVERLOADED, "flex tier capacity exceeded | back off exponentially"),
        said(Kind.PERMISSION, "requires terms acceptance"),
    ),
    *cited(
        "Mistral: bodies in public issues; codes are numbers in quotes",
        coded(Kind.OVERLOADED, "3505", families="mistral"),
        coded(Kind.OVERLOADED, "service_tier_capacity_exceeded backend_out_of_capacity"),
        coded(Kind.MODEL_NOT_FOUND, "1500", families="mistral"),
        coded(Kind.MODEL_NOT_FOUND, "invalid_model"),
        coded(Kind.CONTEXT_LENGTH, "3051", families="mistral"),
        coded(Kind.RATE_LIMIT, "1300", families="mistral"),
        coded(Kind.QUOTA_EXHAUSTED, "3100", families="mistral"),
        said(Kind.OVERLOADED, "service tier capacity exceeded | not enough capacity available"),
        said(Kind.MODEL_NOT_FOUND, "invalid model"),
        said(Kind.QUOTA_EXHAUSTED, "inactive subscription | check your payment plan"),
    ),
    *cited(
        "Cohere, HTTP status codes",
        said(Kind.QUOTA_EXHAUSTED, "api calls month | you have exhausted | trial key * month"),
        said(Kind.RATE_LIMIT, "api calls minute | calls minute | trial token rate limit"),
        said(Kind.CONTENT_POLICY, "blocked output | blocked input"),
        said(Kind.CONTEXT_LENGTH, "total number of tokens | too many tokens", statuses=[0, 400, 422]),
        said(Kind.AUTH, "no api key supplied | invalid api token"),
        said(Kind.ACCOUNT_BLOCKED, "your api key has been suspended"),
    ),
    *cited(
        "Cerebras, Error codes and rate limits",
        coded(Kind.OVERLOADED, "queue_exceeded"),
        coded(Kind.RATE_LIMIT, "token_quota_exceeded request_quota_exceeded", families="cerebras"),
        coded(Kind.RATE_LIMIT, "token_quota_exceeded request_quota_exceeded", message="per minute"),
        coded(Kind.WINDOW_EXHAUSTED, "token_quota_exceeded request_quota_exceeded", message="per day"),
        coded(Kind.MODEL_NOT_FOUND, "wrong_api_format_model"),
        said(Kind.OVERLOADED, "experiencing high traffic"),
        said(
            Kind.RATE_LIMIT,
            """
            tokens per minute limit exceeded | requests per minute limit exceeded | requests per second limit exceeded
            """,
        ),
        said(Kind.WINDOW_EXHAUSTED, "tokens per day limit exceeded | requests per day limit exceeded"),
    ),
    *cited(
        "Together, Error codes; rate limits",
        coded(
            Kind.RATE_LIMIT,
            """
            credit_limit dynamic_request_limited dynamic_token_limited request_limit token_limit model_rate_limit
            """,
        ),
        coded(Kind.OVERLOADED, "server_overloaded"),
        coded(Kind.QUOTA_EXHAUSTED, "credit_limit_reached credit_limit_exceeded"),
        said(Kind.RATE_LIMIT, "dynamic request rate limit | queries per minute | limited to * queries"),
        said(
            Kind.CONTEXT_LENGTH,
            """
            input token count max_tokens parameter must be less than | less than the context length of the model
            """,
        ),
        said(Kind.MODEL_NOT_FOUND, "unable to access model | unable to access non serverless model"),
        said(Kind.OVERLOADED, "engine is currently overloaded"),
    ),
    *cited(
        "Fireworks, Inference error codes; deployments that scale",
        coded(Kind.SCALING_UP, "DEPLOYMENT_SCALING_UP"),
        coded(Kind.MODEL_NOT_FOUND, "NOT_FOUND", message="model"),
        said(Kind.SCALING_UP, "scaled to zero and is scaling up | scaled down to zero"),
        said(Kind.ACCOUNT_BLOCKED, "account * suspended", statuses=[0, 401, 403]),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            suspended * billing | suspended * spending | suspended * unpaid | account * is suspended possibly due to |
            account * suspended
            """,
            statuses=[402, 412, 429],
        ),
        coded(Kind.QUOTA_EXHAUSTED, "PRECONDITION_FAILED", statuses=[412]),
        said(Kind.MODEL_NOT_FOUND, "model not found inaccessible and or not deployed"),
        said(Kind.BAD_SAMPLE, "could not be parsed as json"),
    ),
    *cited(
        "xAI: bodies in public issues; the code is a sentence",
        said(Kind.AUTH, "no api key provided"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            doesn t have any credits | used all available credits or reached its monthly spending limit |
            run out of available resources | purchase those on
            """,
        ),
        said(
            Kind.CONTENT_POLICY,
            """
            content violates usage guidelines | failed check safety_check | safety_check_type
            """,
        ),
        said(
            Kind.OVERLOADED,
            """
            service is currently unavailable | the service is at capacity | model is at capacity |
            service temporarily unavailable * at capacity | service temporarily unavailable the model
            """,
        ),
        said(Kind.CONTEXT_LENGTH, "maximum prompt length is"),
        said(Kind.MODEL_NOT_FOUND, "does not exist or your team"),
        said(Kind.PERMISSION, "caller does not have permission to execute"),
        said(Kind.RATE_LIMIT, "some resource has been exhausted | your team * rate limit"),
    ),
    *cited(
        "Perplexity; DeepSeek, Error codes; SambaNova; DeepInfra; Novita; GitHub Models; Hugging Face",
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            insufficient balance | quota exceeded for this billing | subscribe to pro |
            exceeded your monthly included credits | pre paid credits are required |
            exceeded the monthly included credits | model busy insufficient
            """,
        ),
        said(Kind.CONTENT_POLICY, "content exists risk"),
        coded(Kind.OVERLOADED, "insufficient_system_resource"),
        said(Kind.MODEL_LOADING, "is currently loading | model is currently loading"),
        said(Kind.OVERLOADED, "model busy | model too busy | service is too busy | failed to process * busy"),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            model not exist | not supported by any provider you have enabled | has no provider supported |
            not supported by provider | is not a chat model | not supported for task | unable to route
            """,
        ),
        said(Kind.NO_QUOTA, "free tier does not include | not available on the free tier"),
        said(Kind.WINDOW_EXHAUSTED, "UserByModelByDay | rate limit of * per 86400s", statuses=[429]),
        said(Kind.RATE_LIMIT, "rate limit of * per 60s | max concurrent requests"),
        said(
            Kind.AUTH,
            """
            authentication fails | invalid username or password | invalid user token | authorization token
            """,
        ),
    ),
    *cited(
        "NVIDIA NIM and NVCF: problem details, and gRPC names in sentences",
        said(Kind.AUTH, "authorization failed | authentication failed"),
        said(
            Kind.OVERLOADED,
            """
            degraded function cannot be invoked | worker local total request limit reached | resourceexhausted worker
            | function * degraded
            """,
            statuses=[0, 400, 429, *range(500, 600)],
        ),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            not found for account | function id * not found | specified function in account |
            function * version * not found
            """,
        ),
        said(Kind.QUOTA_EXHAUSTED, "cloud credits expired | credits expired"),
        said(Kind.TIMEOUT, "request timed out in queue | timed out in queue"),
        said(
            Kind.BAD_SAMPLE,
            """
            unknown role | unexpected tokens remaining in message header | could not find a * channel
            """,
        ),
    ),
)
