"""What sentences are about, whoever wrote them: subjects and what is said of them, as sets of plain English words.

Decides where no known phrase does. Words come from the subject matter and from a thesaurus, not from one provider;
`benchmarks/left_out.py` measures what they are worth for a provider that is not known.
"""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.policy.error_rules import about, cited

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
    insufficient | exhausted | exhaust | depleted | too low | not enough | exceeded | exceeds | exceed | over | crossed |
    required | requires | require | expired | overdue | run out | ran out | used up | reached | inactive | hard limit |
    no | zero | none | negative | unpaid | cap | capped | blocked | not active | past due | delinquent | declined | full |
    lapsed | ended | due | needed | empty | t have | not have
    """
_REFUSED = """
    not allowed | t allowed | not available | not yet | denied | disabled | suspended | restricted | banned | blocked |
    deactivated | terminated | closed | locked | archived | forbidden | not permitted | not supported | t supported |
    not enabled | accept | acceptance | agreed | agree | not authorized | not eligible | ineligible | unverified |
    must be verified | revoked | lacks | lack
    """
_NONE_LEFT = """
    full | no | exceeded | exceeds | maximum | limit reached | reached | busy | dropped | rejected | available |
    unavailable | expired | exhausted | none | insufficient | not enough | limited | depleted | overflow | out
    """
_SERVING = """
    server | servers | service | services | model | system | engine | api | endpoint | deployment | upstream | backend |
    provider | gateway | inference | we | our | sorry | cluster | instance | worker | workers | temporarily | platform |
    function | capacity | gpu | gpus
    """
"""Under a status that blames the request, a claim about the serving side is believed where it is the subject: a caller's
own words come later in the sentence."""
_BUSY = " | ".join(
    f"{before} {word}"
    for word in ("overloaded", "busy", "saturated", "congested", "overwhelmed", "oversubscribed")
    for before in (
        "is", "are", "was", "been", "currently", "temporarily", "too", "very", "system", "service", "server", "servers",
        "engine", "so", "being", "all", "model",
    )
    if (before, word) != ("model", "overloaded")
)  # fmt: skip
_CALLERS_FAULT = "parameter | argument | field | value | max_tokens | tool_choice | tools | schema | role | roles"

RULES = (
    *cited(
        "plain English: a prompt and its length",
        *(
            about(
                Kind.CONTEXT_LENGTH,
                "context | prompt | input | inputs | sequence | conversation | messages | tokens | token | chat history",
                _TOO_MUCH,
                "context | token | tokens | length | window | n_ctx | token count | max_model_len",
                absent=f"{_PACE} | per day | output tokens | output | completion tokens | string | array | quota | usage | "
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
            usage limit | usage limits | usage quota | usage cap | free quota | your quota | your limit | current quota |
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
            invalid | missing | expired | incorrect | required | wrong | failed | fails | failure | revoked | malformed |
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
            absent=f"{_CALLERS_FAULT} | with this | by this | for this model | this feature | does not support | loading | "
            "endpoint or method | accept | terms | try again | temporarily | busy | service unavailable | not available yet",
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
            "route | path | endpoint or | page | url | method | api | app | application | service | services | host | site",
            """
            no route | not found | no matching | no such | unknown | unexpected | unrecognized | no handler | not exist |
            t exist | not published
            """,
            statuses=[404],
            absent="model | models | deployment",
        ),
        about(Kind.WRONG_PATH, "no matching | no route | no handler | no match", statuses=[404], absent="model | models"),
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
        "plain English: servers that are full",
        about(Kind.OVERLOADED, _BUSY),
        about(
            Kind.OVERLOADED,
            "capacity",
            """
            no | not | exceeded | at | over | maximum | full | exhausted | insufficient | limited | limits | temporarily |
            out | reached | lack | lacks | constraints | unavailable | limit | without | low
            """,
            absent="per minute | your plan",
        ),
        about(
            Kind.OVERLOADED,
            """
            queue | queued | queues | pending | backlog | slots | slot | workers | worker | instances | instance |
            replicas | executor | executors | servers | accounts | gpus | pods | data centers | datacenters | nodes | backends |
            engine slots | hosts | provider | providers
            """,
            _NONE_LEFT,
            absent="died | dead | exited | crashed | your account | credits | per minute | rate limit | scaled | killed | "
            "not supported | quota",
        ),
        about(
            Kind.OVERLOADED,
            "backpressure | back pressure | load shedding | shedding | sheddable | load shed | saturated | overloading",
            "request | requests | system | server | pool | dropped | due | rejected | shedding | backpressure | is",
        ),
        about(
            Kind.OVERLOADED,
            "demand | traffic | load",
            "high | heavy | unusually | peak | excessive | heavily | increased | surge | overload",
            absent="failed to | unable to load | your account",
        ),
        about(
            Kind.OVERLOADED,
            f"{_BUSY} | overloaded or | capacity | demand | traffic | load | degraded | unhealthy | draining | queue",
            """
            again | later | retry | ready | now | currently | moment | cannot process | unable to process | cannot be |
            can t | could not be | temporarily | rejected | full
            """,
            statuses=[400, 422],
            subject=_SERVING,
            absent="max_tokens | prompt | parameter | load the | to load",
        ),
        about(
            Kind.SERVER_ERROR,
            "temporarily unavailable | currently unavailable | temporarily down | temporary failure | unavailable right",
            statuses=[400, 422],
            subject=_SERVING,
            absent="your account | your region | region | country",
        ),
    ),
    *cited(
        "plain English: servers that start, break or stop",
        about(
            Kind.MODEL_LOADING,
            "model | deployment | endpoint | engine | container | replica | server | instance | loading model | pod",
            """
            loading | not ready | starting | initializing | initialising | warming | warm up | provisioning | cold start |
            spinning up | waking up | waking | unloaded | sleeping | booting | still loading | being loaded | coming up
            """,
            absent="failed | error | failure | could not | unable | t load | crashed | timed out | exited",
            statuses=[0, 404, 424, 425, 429, *range(500, 600)],
        ),
        about(
            Kind.MODEL_LOADING,
            "session | container | replica | instance | endpoint | model | pod",
            "become ready | became ready | not ready",
            statuses=[0, 424, 425, 429, *range(500, 600)],
        ),
        about(
            Kind.MODEL_LOADING,
            "model is | model has | model currently | instance is | engine is",
            "unloaded | loading | starting | initializing | warming | waking | not ready",
            subject="model | engine | instance",
            absent="failed | error | cold | crashed",
            statuses=[400, 422],
        ),
        about(
            Kind.SCALING_UP,
            "model | deployment | endpoint | instance | replicas | function",
            "scaled to | scale to | scaling up | scaled down | is cold | scaling from | from zero | paused | hibernating",
            statuses=[0, 400, 404, 409, 424, 425, 429, *range(500, 600)],
        ),
        about(
            Kind.GPU_OOM,
            "memory | vram | gpu | system resources | host memory",
            "out of | insufficient | not enough | requires more | allocate | allocation | unable to | exhausted | full model",
            absent="gpus available | no gpus | instances | capacity",
            statuses=[0, 400, 404, 424, *range(500, 600)],
        ),
        about(
            Kind.SERVER_ERROR,
            "model | engine | enginecore | worker | runner | process | server | container | backend | function | command",
            """
            crash | crashed | died | dead | killed | unexpectedly | panicked | segfault | exited | core dumped |
            terminated by | terminated unexpectedly | exit code | restarted | aborted unexpectedly | failed to load |
            error loading | not load | unable to load | encountered an | not running | exited prematurely
            """,
            statuses=[0, 400, 424, *range(500, 600)],
            absent="client | your account | caller | image | url | file | adapter name",
        ),
        about(
            Kind.CONNECT_TIMEOUT,
            "connection timeout | connect timeout | connection timed | connect timed | timeout connecting",
        ),
        about(
            Kind.TIMEOUT,
            "timeout | timed out | time out | deadline | timedout",
            """
            request | response | connection | upstream | gateway | read | byte | stream | exceeded | waiting | backend |
            invocation | queue | inference | operation | generation | server | expired | execution
            """,
            absent="parameter | activator",
        ),
        about(
            Kind.NETWORK,
            """
            connection | connect | upstream | origin | peer | socket | tunnel | dial | dns | endpoints | route | host |
            reach | unreachable | network | backend | connect to
            """,
            """
            failed | failure | refused | reset | closed | terminated | termination | unreachable | no healthy | lost |
            aborted | eof | disconnect | disconnected | connect error | no available | dial | unhealthy | error trying |
            could not reach | cannot reach | no endpoints | cannot connect | t connect | not connect | not contact |
            not resolve | balancer
            """,
            absent="upstream error | backend fetch | upstream server is | command | load model | fetch failed",
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
    *cited(
        "plain English: what the model wrote and its server could not use",
        about(
            Kind.BAD_SAMPLE,
            "generated | model output | model produced | model generated | failed_generation | failed generation",
            "json | schema | tool | function | call | arguments | parse | parsed",
            "not | failed | invalid | malformed | unparsable | failed_generation",
            statuses=[0, 400, 422, 424, *range(500, 600)],
        ),
        about(
            Kind.BAD_SAMPLE,
            "tool | function | json | tool call | function call | call | arguments | generated | schema",
            "parse | parsing | parsed | generate | generated | match | malformed | invalid character | call a",
            "failed | error | not | could | invalid | missing | malformed | unexpected",
            statuses=[0, 424, *range(500, 600)],
            absent="your request | request body | json body | body of | the request | parameter | mcp | must be | response",
        ),
    ),
)
