"""Gemini API and Vertex AI: google.rpc statuses, their details, and sentences where a status does not decide."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "google.rpc.ErrorInfo reasons; Gemini API, Troubleshooting; Vertex AI, API errors",
        coded(Kind.WINDOW_EXHAUSTED, "quotaperday"),
        coded(Kind.RATE_LIMIT, "quotaperminute quotapersecond"),
        coded(
            Kind.AUTH,
            """
            API_KEY_INVALID API_KEY_EXPIRED ACCESS_TOKEN_EXPIRED CREDENTIALS_MISSING ACCESS_TOKEN_TYPE_UNSUPPORTED
            ACCOUNT_STATE_INVALID UNAUTHENTICATED API_KEY_SERVICE_BLOCKED
            """,
        ),
        coded(
            Kind.PERMISSION,
            """
            SERVICE_DISABLED IAM_PERMISSION_DENIED ACCESS_TOKEN_SCOPE_INSUFFICIENT CONSUMER_INVALID
            USER_PROJECT_DENIED
            """,
        ),
        coded(
            Kind.BLOCKED,
            """
            API_KEY_IP_ADDRESS_BLOCKED API_KEY_HTTP_REFERRER_BLOCKED LOCATION_POLICY_VIOLATED SECURITY_POLICY_VIOLATED
            """,
        ),
        coded(Kind.QUOTA_EXHAUSTED, "BILLING_DISABLED"),
        coded(Kind.ACCOUNT_BLOCKED, "CONSUMER_SUSPENDED"),
        coded(Kind.CONTENT_POLICY, "blockreason SAFETY PROHIBITED_CONTENT"),
        coded(Kind.RATE_LIMIT, "RESOURCE_EXHAUSTED", is_weak=True, statuses=[0, 403, 429, *range(500, 600)]),
        coded(Kind.OVERLOADED, "UNAVAILABLE", message="visibility check"),
        coded(Kind.TIMEOUT, "DEADLINE_EXCEEDED", is_weak=True, statuses=[0, 408, 499, *range(500, 600)]),
        coded(Kind.CLIENT_CANCELLED, "CANCELLED", is_weak=True, statuses=[0, 499]),
        coded(Kind.CONFLICT, "ABORTED ALREADY_EXISTS", is_weak=True, statuses=[0, 409]),
        coded(
            Kind.INVALID_REQUEST,
            """
            INVALID_ARGUMENT FAILED_PRECONDITION OUT_OF_RANGE
            """,
            is_weak=True,
            statuses=[0, 400],
        ),
        coded(Kind.MISROUTED, "UNIMPLEMENTED", is_weak=True, statuses=[0, 501]),
        said(Kind.NO_QUOTA, "limit 0 | quota is 0 | limit is 0 | no free quota tier", statuses=[0, 429], is_firm=True),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            prepayment credits are depleted | dunning decision is deny | billing account * not found |
            this api method requires billing | monthly spending cap | exceeded its monthly spending |
            exceeded your current quota
            """,
        ),
        said(
            Kind.AUTH,
            """
            api key not valid | api key not found | api key expired | callers without established identity |
            request had invalid authentication credentials | expected oauth 2 access token |
            api keys are not supported by this api | reported as leaked | request is missing required authentication
            """,
        ),
        said(
            Kind.PERMISSION,
            """
            has not been used in project | it is disabled enable it by visiting | permission * denied on resource |
            caller does not have permission | requests to this api * are blocked
            """,
        ),
        said(Kind.BLOCKED, "user location is not supported | ip address restriction | requests from referer"),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            is not found for api version | publisher model | no longer available to new users |
            is not supported for generatecontent | is not servable in region | not supported in the * region
            """,
            statuses=[0, 400, 404],
        ),
        said(
            Kind.OVERLOADED,
            """
            model is overloaded | resource exhausted please try again later | resource exhausted please refer to |
            experiencing high demand | the service is currently unavailable
            """,
            statuses=[0, 429, 500, 503],
        ),
        said(Kind.CONTEXT_LENGTH, "input context is too long | input token count", statuses=[0, 400, 500]),
        said(Kind.CONTENT_POLICY, "violated google s | violate google s | support codes | prohibited use policy"),
        said(Kind.TIMEOUT, "deadline expired before operation could complete", statuses=[0, 500, 503, 504]),
        said(Kind.CLIENT_CANCELLED, "the operation was cancelled", statuses=[0, 499]),
    ),
    *cited(
        "Gemini words the window of a minute as a quota, too; the metric tells, where the details are cut off",
        said(Kind.WINDOW_EXHAUSTED, "*_per_day* | *perday*", statuses=[0, 429], is_firm=True),
        said(Kind.RATE_LIMIT, "*_per_minute* | *perminute*", statuses=[0, 429], is_firm=True),
        said(
            Kind.WINDOW_EXHAUSTED,
            "quota exceeded for metric | *_free_tier_*",
            is_firm=True,
            soon=Kind.RATE_LIMIT,
        ),
        said(Kind.RATE_LIMIT, "resource has been exhausted | online_prediction_requests_per_base_model"),
    ),
)
