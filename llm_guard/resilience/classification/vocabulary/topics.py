"""Senses: subjects of sentences and statements about them, as sets of plain English words.

They decide if no known phrase matches. The words come from the subject matter and from a thesaurus, not from one
provider; `benchmarks/left_out.py` measures how well they classify the errors of an unknown provider.
"""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import about, cited

_TOO_MUCH = """
    too long | too large | too big | too many | longer | larger | bigger | exceed | exceeds | exceeded | exceeding |
    overflow | overflows | overflowed | greater than | more than | over the | less than | fewer than | fit | above |
    should be | must be | at most | cannot be | but the | but your | but received | but got | longest
    """
_SHORT = "per minute | per min | minute | per second | per sec | rpm | tpm | rps | qps"
_PACE = """
    per minute | per min | per second | per sec | minute | rpm | tpm | rps | qps | rate limit | rate limits |
    rate limited | ratelimit | your rate | concurrent | concurrency | throttled | burst
    """
_GONE = """
    unknown | unsupported | not supported | t supported | unrecognized | decommissioned | deprecated | retired |
    removed | sunset | discontinued | no such | not available | t available | unavailable for | not deployed |
    t deployed | not loaded | not configured | no longer | not found | t found | not exist | t exist | nonexistent |
    not a valid | not valid | is invalid | not recognized | disabled | end of | unable to access | cannot access |
    can t access | not hosted | not served | no models | no model | valid model | unavailable model |
    model unavailable | t valid | not exposed
    """
_SPENT = """
    insufficient | exhausted | exhaust | depleted | too low | not enough | exceeded | exceeds | exceed | over |
    crossed |
    required | requires | require | expired | overdue | run out | ran out | used up | reached | inactive | hard limit |
    no | zero | none | negative | unpaid | cap | capped | blocked | not active | past due | delinquent | declined |
    full |
    lapsed | ended | due | needed | empty | t have | not have
    """
_REFUSED = """
    not allowed | t allowed | not available | not yet | denied | disabled | suspended | restricted | banned | blocked |
    deactivated | terminated | closed | locked | archived | forbidden | not permitted | not supported | t supported |
    not enabled | accept | acceptance | agreed | agree | not authorized | not eligible | ineligible | unverified |
    must be verified | revoked | lacks | lack
    """
_CALLERS_FAULT = "parameter | argument | field | value | max_tokens | tool_choice | tools | schema | role | roles"

RULES = (
    *cited(
        "plain English: a prompt and its length",
        *(
            about(
                Kind.CONTEXT_LENGTH,
                "context | prompt | input | inputs | sequence | conversation | messages | tokens | "
                "token | chat history",
                _TOO_MUCH,
                "context | token | tokens | length | window | n_ctx | token count | max_model_len",
                absent=f"{_PACE} | per day | output tokens | output | completion tokens | string | "
                "array | quota | usage | "
                "credits | budget | wait | rate | requests | max_tokens is | request body | body too",
            ),
            about(
                Kind.CONTEXT_LENGTH,
                "prompt | input | context | conversation",
                "is too | too long | too large",
                absent=f"{_PACE} | string | array | image | file | output | quota",
            ),
        ),
    ),
    *cited(
        "plain English: money and allowances",
        about(
            Kind.QUOTA_EXHAUSTED,
            """
            credit | credits | balance | billing | payment | prepaid | prepayment | spend | spending | budget |
            subscription | invoice | funds | wallet | recharge | top up | trial | free tier | paid plan | expenditure
            """,
            _SPENT,
            absent=f"{_PACE} | in flight | load balancer | subscription key | api key",
        ),
        about(
            Kind.QUOTA_EXHAUSTED,
            """
            usage limit | usage limits | usage quota | usage cap | free quota | your quota | your limit |
            current quota |
            your plan | your allowance | allocation | allowance | no quota | your usage | neurons
            """,
            """
            reached | hit | exceeded | exceed | used | exhausted | reset | resets | regain access | upgrade | purchase |
            used up | refreshed | no quota | consumed
            """,
            absent=_PACE,
            statuses=[0, 400, 402, 403, 412, 429, 500],
        ),
        about(
            Kind.QUOTA_EXHAUSTED,
            "quota | allowance | limit | limits | usage",
            "month | monthly | week | weekly | billing cycle | billing period | year | 7 day | 30 day | hour window",
            absent=f"{_PACE} | per month tokens",
            statuses=[0, 402, 403, 429],
        ),
        about(
            Kind.QUOTA_EXHAUSTED,
            "calls | requests | tokens | images | limited",
            "month | week | monthly | weekly",
            absent=_SHORT,
            statuses=[0, 402, 403, 429],
        ),
        about(
            Kind.QUOTA_EXHAUSTED,
            "quota",
            "exceeded | exhausted | exceeds | reached | used | out of | replenished | renewed",
            absent=_PACE,
            statuses=[402, 403],
        ),
        about(
            Kind.WINDOW_EXHAUSTED,
            "quota | allowance | allocation | limit | limits | usage | requests | tokens | calls",
            "day | daily | today | 24 hours | per day | tpd | rpd",
            absent=_SHORT,
            statuses=[0, 402, 403, 429],
            soon=Kind.RATE_LIMIT,
        ),
    ),
    *cited(
        "plain English: credentials and rights",
        about(
            Kind.AUTH,
            """
            api key | api_key | apikey | credential | credentials | authentication | bearer | signature | jwt |
            access token | security token | authentication token | auth token | subscription key | authorization |
            oauth token | access key | secret key | login
            """,
            """
            invalid | missing | expired | incorrect | required | wrong | failed | fails | failure | revoked |
            malformed |
            not valid | no | unauthorized | not match | t match | mismatch | not found | could not | unable | bad |
            please use | unknown | rejected | provide | need
            """,
            absent="access to | does not have | rate limit",
            statuses=[0, 400, 401, 403, 407],
        ),
        about(
            Kind.PERMISSION,
            """
            account | organization | organisation | workspace | team | project | terms | license | licence | region |
            country | location | territory | tenant | user | plan | tier | permission | access
            """,
            _REFUSED,
            absent=f"{_CALLERS_FAULT} | firewall",
            statuses=[0, 400, 401, 403, 404, 451],
        ),
        about(
            Kind.PERMISSION,
            "permission | permissions | scope | scopes | privilege | privileges | entitlement",
            "insufficient | missing | lacks | lack | required | not have | t have | without | denied | no",
            statuses=[0, 400, 401, 403],
        ),
    ),
    *cited(
        "plain English: models that are not there",
        about(
            Kind.MODEL_NOT_FOUND,
            "model | models | deployment | deployments | modelid | model id | endpoint | function id | adapter",
            _GONE,
            absent=f"{_CALLERS_FAULT} | with this | by this | for this model | this feature | "
            "does not support | loading | "
            "endpoint or method | accept | terms | try again | temporarily | busy | "
            "service unavailable | not available yet",
            statuses=[0, 400, 404, 410, 422],
        ),
        about(
            Kind.MODEL_NOT_FOUND,
            "function | checkpoint | adapter | lora | endpoints | endpoint",
            "not found | no endpoints | no such | not exist | t exist",
            statuses=[404, 410],
            absent=f"{_CALLERS_FAULT} | function call | path | page | route | url | unknown endpoint",
        ),
        about(
            Kind.WRONG_PATH,
            "route | path | endpoint or | page | url | method | api | app | application | service | "
            "services | host | site",
            """
            no route | not found | no matching | no such | unknown | unexpected | unrecognized | no handler |
            not exist |
            t exist | not published
            """,
            statuses=[404],
            absent="model | models | deployment",
        ),
        about(
            Kind.WRONG_PATH, "no matching | no route | no handler | no match", statuses=[404], absent="model | models"
        ),
        about(
            Kind.NOT_FOUND,
            "response | file | thread | item | conversation | message | batch | assistant | vector | session",
            "not found | not exist | t exist | t found",
            statuses=[400, 404],
            absent="model | models | deployment | endpoint | path | route",
        ),
    ),
    *cited(
        "plain English: content that is refused",
        about(
            Kind.CONTENT_POLICY,
            """
            moderation | guardrail | guardrails | flagged | content filter | content filtering | content policy |
            content management | safety system | safety policy | safety check | safety checks | safety filter |
            safety reasons | prohibited | inappropriate | harmful | violates | violating | violation | violate |
            usage policy | usage guidelines | usage policies | unsafe | objectionable | nsfw
            """,
            """
            content | prompt | input | output | request | response | policy | policies | guidelines | system | checks |
            usage | message | image | text | blocked | failed | safety
            """,
            absent="firewall | network | ip | address | rate limit | quota | limit reached | schema | waf | too many",
        ),
    ),
    *cited(
        "plain English: what the request brings along",
        about(
            Kind.DEPLOYMENT_PAYLOAD,
            "tokens | token",
            "too large | too big | exceeds | max size | maximum size | larger",
            statuses=[413],
        ),
        about(
            Kind.INVALID_REQUEST,
            "mcp | mcp server | tool server | connector | external tool",
            "error | failed | retrieving | unauthorized | unreachable | not found",
            statuses=[400, 422, 424],
            absent="model",
        ),
    ),
)
