"""OpenAI and Azure OpenAI."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "OpenAI, Error codes guide; openai-openapi PR 564",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            insufficient_quota billing_hard_limit_reached billing_not_active credit_balance_exhausted
            organization_spend_limit_exceeded project_spend_limit_exceeded organization_usage_limit_exceeded
            usage_limit_reached project_usage_limit_exceeded organization_quota_exceeded billing_limit_user_error
            """,
        ),
        coded(Kind.OVERLOADED, "server_is_overloaded engine_overloaded"),
        coded(Kind.RATE_LIMIT, "slow_down"),
        coded(
            Kind.AUTH,
            """
            invalid_issuer invalid_organization mismatched_organization no_such_organization mismatched_project
            invalid_project token_invalidated
            """,
        ),
        coded(Kind.BLOCKED, "unsupported_country_region_territory ip_not_authorized"),
        coded(Kind.ACCOUNT_BLOCKED, "account_deactivated"),
        coded(
            Kind.NOT_FOUND,
            """
            previous_response_not_found item_not_found thread_not_found container_not_found file_not_found
            """,
        ),
        coded(Kind.WRONG_PATH, "unknown_url"),
        coded(Kind.MISROUTED, "invalid_encrypted_content"),
        coded(
            Kind.INVALID_REQUEST,
            """
            invalid_image_url image_parse_error unsupported_value unsupported_parameter invalid_value invalid_type
            string_above_max_length missing_required_parameter invalid_function_parameters unknown_parameter
            array_above_max_length invalid_base64_image unsupported_file_mimetype unsupported_format
            integer_above_max_value decimal_above_max_value
            """,
            is_weak=True,
        ),
        coded(
            Kind.CONTENT_POLICY,
            """
            invalid_prompt cyber_policy_violation bio_policy cyber_policy
            """,
            message="flagged",
        ),
        coded(Kind.CONTENT_POLICY, "invalid_prompt", message="usage policy"),
        coded(Kind.CONTENT_POLICY, "cyber_policy safety_policy user_error_moderation misuse_detected"),
        coded(Kind.TIMEOUT, "server_timeout engine_timeout vector_store_timeout"),
        coded(Kind.PERMISSION, "model_access_denied unsupported_plan organization_not_verified feature_not_enabled"),
        said(
            Kind.AUTH,
            """
            incorrect api key provided | you didn t provide an api key | must be a member of an organization |
            no such organization | mismatched organization | provided authentication token
            """,
        ),
        said(Kind.QUOTA_EXHAUSTED, "billing details | quota is insufficient", statuses=[0, 402, 403, 429]),
        said(
            Kind.WINDOW_EXHAUSTED,
            """
            on requests per day | on tokens per day | requests per day rpd | tokens per day tpd
            """,
            soon=Kind.RATE_LIMIT,
            statuses=[0, 429],
            families="openai azure",
        ),
        said(
            Kind.CONTENT_POLICY,
            """
            rejected as a result of our safety system | not allowed by our safety system |
            flagged as potentially violating | violating our usage policy | possible cybersecurity risk
            """,
        ),
        said(Kind.FETCH_FAILED, "timeout while downloading | error while downloading", statuses=[0, 400]),
        said(Kind.DEPLOYMENT_PAYLOAD, "request too large for", statuses=[400, 413]),
        coded(Kind.OVER_LIMIT, "rate_limit_exceeded", message="request too large for", statuses=[0, 429]),
        said(Kind.OVER_LIMIT, "request too large for", statuses=[0, 429]),
        said(
            Kind.CONFLICT,
            """
            another process is currently operating | conversation_locked | already has an active
            """,
            statuses=[0, 400, 409, 429],
        ),
        said(
            Kind.SERVER_ERROR,
            """
            the server had an error | error occurred while processing your request |
            encountered an error while processing | you can retry your request | something went wrong
            """,
        ),
    ),
    *cited(
        "Azure OpenAI, Microsoft Learn; openai-dotnet issue 838; API Management error bodies",
        coded(
            Kind.MODEL_NOT_FOUND,
            """
            DeploymentNotFound OperationNotSupported unavailable_model unknown_model ModelDeprecated
            ServiceModelDeprecated
            """,
        ),
        coded(Kind.OVERLOADED, "NoCapacity model_capacity"),
        coded(Kind.CONTENT_POLICY, "ResponsibleAIPolicyViolation content_filter content_filter_error"),
        coded(
            Kind.AUTH,
            """
            PermissionDeniedKey InvalidAuthenticationToken AuthenticationTypeDisabled InvalidApiKey
            ExpiredAuthenticationToken InvalidAuthenticationTokenTenant
            """,
        ),
        coded(Kind.PERMISSION, "AuthorizationFailed SubscriptionNotRegistered"),
        coded(Kind.ACCOUNT_BLOCKED, "SubscriptionDisabled AccountSuspended ReadOnlyDisabledSubscription"),
        coded(Kind.BLOCKED, "AccessDeniedByFirewall PublicNetworkAccessDisabled VirtualNetworkRules"),
        coded(Kind.NOT_FOUND, "ResourceNotFound", is_weak=True, statuses=[0, 404]),
        coded(Kind.QUOTA_EXHAUSTED, "QuotaExceeded", message="out of call volume"),
        coded(Kind.WINDOW_EXHAUSTED, "UserByModelByDay"),
        coded(Kind.RATE_LIMIT, "UserByModelByMinute UserConcurrentRequests UserByMinute"),
        coded(Kind.CONFLICT, "RequestConflict"),
        said(Kind.WINDOW_EXHAUSTED, "UserByModelByDay | per 86400s exceeded"),
        said(Kind.QUOTA_EXHAUSTED, "out of call volume quota | quota will be replenished | call volume quota"),
        said(
            Kind.RATE_LIMIT,
            """
            call rate limit | exceeded token rate limit | exceeded call rate limit | rate limit is exceeded
            """,
        ),
        said(Kind.ACCOUNT_BLOCKED, "resource has been temporarily blocked", is_firm=True),
        said(Kind.MODEL_NOT_FOUND, "api deployment for this resource does not exist | specified * deployment"),
        said(Kind.AUTH, "invalid subscription key | wrong api endpoint | principal does not have access to api"),
        said(Kind.TIMEOUT, "operation was timeout | operation timed out"),
    ),
)
