"""Machine-readable words that many providers share, in the style of OpenAI and Anthropic."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded

RULES = (
    *cited(
        "codes that OpenAI-compatible servers share",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            insufficient_credits insufficient_credit insufficient_funds payment_required payment_error
            credits_exhausted credit_exhausted out_of_credits no_credits spend_limit_exceeded
            spending_limit_reached usage_limit_exceeded usage_limit monthly_limit_exceeded insufficient_user_quota
            account_overdue subscription_required quota_exhausted balance_not_enough insufficient_account_balance
            UsageLimitError out_of_quota pre_consume_token_quota_failed
            """,
        ),
        coded(Kind.WINDOW_EXHAUSTED, "daily_limit_exceeded daily_quota_exceeded daily_limit_reached"),
        coded(
            Kind.AUTH,
            """
            missing_api_key no_api_key incorrect_api_key api_key_not_found expired_api_key api_key_disabled
            invalid_token token_expired invalid_authentication authentication_failed invalid_credentials
            missing_authorization token_revoked invalid_key authentication_required auth_unavailable credential_error
            key_not_found invalid_auth
            """,
        ),
        coded(
            Kind.ACCOUNT_BLOCKED,
            """
            account_disabled account_blocked user_banned organization_deactivated account_terminated account_inactive
            """,
        ),
        coded(
            Kind.MODEL_NOT_FOUND,
            """
            model_not_available model_not_exist model_not_exists no_such_model invalid_model_error
            model_unavailable_for_account model_not_allowed model_retired ModelError_not_found model_not_found_error
            unknown_model_error
            """,
        ),
        coded(
            Kind.CONTEXT_LENGTH,
            """
            context_length_exceeded context_window_exceeded context_limit_exceeded prompt_too_long input_too_long
            max_context_length_exceeded model_context_window_exceeded context_too_long token_limit_exceeded_for_model
            context_length_error context_overflow max_tokens_exceeded string_above_context_length
            input_length_exceeded
            """,
        ),
        coded(
            Kind.CONTENT_POLICY,
            """
            content_policy_violation content_policy content_moderation content_filtered moderation_blocked
            safety_check_failed sensitive_words_detected moderation_error content_blocked guardrail_violation
            policy_violation safety_violation guardrails_blocked prompt_blocked guardrail_intervened
            image_content_policy_violation moderation blocked_by_guardrail
            """,
        ),
        coded(
            Kind.OVERLOADED,
            """
            overloaded_error capacity_exceeded at_capacity over_capacity model_overloaded server_busy queue_full
            model_at_capacity system_overloaded too_busy resource_overloaded insufficient_capacity capacity_reached
            """,
        ),
        coded(Kind.MODEL_LOADING, "model_loading model_not_ready model_is_loading loading_model warming_up"),
        coded(Kind.GPU_OOM, "out_of_memory cuda_out_of_memory oom"),
        coded(Kind.DEPLOYMENT_PAYLOAD, "rate_limit_exceeded rate_limit_error tokens", statuses=[413]),
        coded(
            Kind.PAYLOAD_TOO_LARGE,
            """
            payload_too_large request_entity_too_large body_too_large file_too_large request_body_too_large
            """,
        ),
        coded(
            Kind.CLIENT_CANCELLED,
            """
            request_cancelled request_canceled client_closed_request client_disconnected request_aborted_by_client
            """,
        ),
        coded(
            Kind.BAD_SAMPLE,
            """
            malformed_function_call malformed_tool_call output_parse_failed invalid_model_output model_output_error
            tool_call_parse_error failed_generation invalid_tool_call_generation
            """,
        ),
        coded(Kind.CONFLICT, "conflict conflict_error resource_conflict idempotency_conflict", is_weak=True),
    ),
    *cited(
        "codes that repeat the status in words",
        coded(
            Kind.RATE_LIMIT,
            """
            rate_limit rate_limit_error rate_limit_exceeded rate_limited too_many_requests throttled throttling
            rate_limit_reached requests_limit_exceeded request_limit_exceeded rate_exceeded concurrency_limit_exceeded
            rate_limit_exceeded_error tokens_limit_exceeded resource_exhausted too_many_concurrent_requests
            limit_exceeded requests tokens
            """,
            is_weak=True,
            statuses=[0, 403, 408, 429, *range(500, 600)],
        ),
        coded(Kind.QUOTA_EXHAUSTED, "quota_exceeded", is_weak=True, statuses=[0, 402, 403, 429]),
        coded(
            Kind.AUTH,
            """
            authentication authentication_error unauthorized auth_error unauthorised
            """,
            is_weak=True,
            statuses=[0, 400, 401, 403, 407, *range(500, 600)],
        ),
        coded(
            Kind.PERMISSION,
            """
            permission_error permission_denied forbidden access_denied permission_denied_error access_forbidden
            not_authorized access_denied_error insufficient_permissions unsupported_country_region_territory
            """,
            is_weak=True,
            statuses=[0, 400, 401, 403, *range(500, 600)],
        ),
        coded(
            Kind.TIMEOUT,
            """
            timeout timeout_error request_timeout gateway_timeout deadline_exceeded upstream_timeout APITimeoutError
            operation_timeout request_timed_out timed_out
            """,
            is_weak=True,
            statuses=[0, 408, 424, 499, *range(500, 600)],
        ),
        coded(Kind.OVERLOADED, "service_unavailable_error unavailable_overloaded", is_weak=True, statuses=[0]),
        coded(
            Kind.SERVER_ERROR,
            """
            server_error internal_server_error internal_error api_error service_unavailable bad_gateway unavailable
            internal upstream_error provider_error internal_failure unknown_error service_unavailable_error
            internal_service_error APIConnectionError generation bad_gateway_error upstream_failure
            """,
            is_weak=True,
            statuses=[0, 424, 500, 502],
        ),
        coded(Kind.NOT_FOUND, "not_found not_found_error resource_not_found", is_weak=True, statuses=[0]),
        coded(
            Kind.INVALID_REQUEST,
            """
            invalid_request_error invalid_request bad_request invalid_argument BadRequestError validation_error
            unprocessable_entity invalid_parameter validation
            """,
            is_weak=True,
            statuses=[0, 424],
        ),
        coded(Kind.CLIENT_CANCELLED, "canceled", is_weak=True, statuses=[0, 499]),
        coded(Kind.PAYLOAD_TOO_LARGE, "content_too_large", is_weak=True, statuses=[0]),
    ),
)
