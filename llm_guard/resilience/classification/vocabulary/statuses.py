"""Meaning of an HTTP status if there is no other evidence.

RFC 9110; RFC 6585; nginx (444, 494 to 499); Cloudflare (520 to 530); AWS load balancers (460, 561); Groq (498);
Anthropic (529).
"""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind

OF_STATUS = {
    401: Kind.AUTH,
    402: Kind.QUOTA_EXHAUSTED,
    403: Kind.PERMISSION,
    404: Kind.NOT_FOUND,
    405: Kind.MISROUTED,
    406: Kind.INVALID_REQUEST,
    407: Kind.AUTH,
    408: Kind.TIMEOUT,
    409: Kind.CONFLICT,
    410: Kind.MODEL_NOT_FOUND,
    413: Kind.PAYLOAD_TOO_LARGE,
    414: Kind.PAYLOAD_TOO_LARGE,
    421: Kind.RETIRED,
    424: Kind.SERVER_ERROR,
    425: Kind.TOO_EARLY,
    426: Kind.MISROUTED,
    429: Kind.RATE_LIMIT,
    431: Kind.PAYLOAD_TOO_LARGE,
    444: Kind.NETWORK,
    451: Kind.BLOCKED,
    460: Kind.CLIENT_CANCELLED,
    494: Kind.PAYLOAD_TOO_LARGE,
    495: Kind.AUTH,
    496: Kind.AUTH,
    497: Kind.MISROUTED,
    498: Kind.OVERLOADED,
    499: Kind.CLIENT_CANCELLED,
    501: Kind.MISROUTED,
    503: Kind.SERVER_ERROR,
    504: Kind.TIMEOUT,
    505: Kind.MISROUTED,
    511: Kind.BLOCKED,
    521: Kind.NETWORK,
    522: Kind.CONNECT_TIMEOUT,
    523: Kind.NETWORK,
    524: Kind.TIMEOUT,
    525: Kind.NETWORK,
    526: Kind.CERTIFICATE,
    527: Kind.NETWORK,
    529: Kind.OVERLOADED,
    530: Kind.NETWORK,
    561: Kind.AUTH,
    598: Kind.TIMEOUT,
    599: Kind.CONNECT_TIMEOUT,
}

STATUS_OF = {
    Kind.AUTH: 401,
    Kind.PERMISSION: 403,
    Kind.ACCOUNT_BLOCKED: 403,
    Kind.BLOCKED: 403,
    Kind.MODEL_NOT_FOUND: 404,
    Kind.NOT_FOUND: 404,
    Kind.WRONG_PATH: 404,
    Kind.CONFLICT: 409,
    Kind.PAYLOAD_TOO_LARGE: 413,
    Kind.DEPLOYMENT_PAYLOAD: 413,
    Kind.RATE_LIMIT: 429,
    Kind.QUOTA_EXHAUSTED: 429,
    Kind.WINDOW_EXHAUSTED: 429,
    Kind.NO_QUOTA: 429,
    Kind.CONTEXT_LENGTH: 400,
    Kind.DEPLOYMENT_CONTEXT: 400,
    Kind.CONTENT_POLICY: 400,
    Kind.INVALID_REQUEST: 400,
    Kind.OVERLOADED: 503,
    Kind.MODEL_LOADING: 503,
    Kind.TIMEOUT: 504,
    Kind.CONNECT_TIMEOUT: 504,
}
"""Status that an error inside a stream should have had; 500 for a kind that is not listed."""
