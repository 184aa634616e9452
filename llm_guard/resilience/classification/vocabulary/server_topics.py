"""Senses about servers: full, starting, broken, unreachable. Complements `topics`."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import about, cited

_NONE_LEFT = """
    full | no | exceeded | exceeds | maximum | limit reached | reached | busy | dropped | rejected | available |
    unavailable | expired | exhausted | none | insufficient | not enough | limited | depleted | overflow | out
    """
_SERVING = """
    server | servers | service | services | model | system | engine | api | endpoint | deployment | upstream | backend |
    provider | gateway | inference | we | our | sorry | cluster | instance | worker | workers | temporarily | platform |
    function | capacity | gpu | gpus
    """
"""Under a status that blames the request, a statement about the server is believed only if it is the sentence's
subject: words of a caller come later in the sentence."""
_OF_A_REQUEST = """
    invalid | value | values | expected | field | parameter | argument | content | text | messages | prompt |
    max_tokens | must be | should be | unknown | unsupported | schema
    """
_NOT_OF_A_SERVER = f"{_OF_A_REQUEST} | image | url | file | tool | tools | name | not allowed"
_BUSY = " | ".join(
    f"{before} {word}"
    for word in ("overloaded", "busy", "saturated", "congested", "overwhelmed", "oversubscribed")
    for before in (
        "is", "are", "was", "been", "currently", "temporarily", "too", "very", "system", "service", "server", "servers",
        "engine", "so", "being", "all", "model",
    )
    if (before, word) != ("model", "overloaded")
)  # fmt: skip
RULES = (
    *cited(
        "plain English: servers that are full",
        about(Kind.OVERLOADED, _BUSY),
        about(
            Kind.OVERLOADED,
            "capacity",
            """
            no | not | exceeded | at | over | maximum | full | exhausted | insufficient | limited | limits |
            temporarily |
            out | reached | lack | lacks | constraints | unavailable | limit | without | low
            """,
            absent="per minute | your plan",
        ),
        about(
            Kind.OVERLOADED,
            """
            queue | queued | queues | pending | backlog | slots | slot | workers | worker | instances | instance |
            replicas | executor | executors | servers | accounts | gpus | pods | data centers | datacenters |
            nodes | backends |
            engine slots | hosts | provider | providers
            """,
            _NONE_LEFT,
            absent="died | dead | exited | crashed | your account | credits | per minute | rate limit | "
            "scaled | killed | "
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
            absent=f"{_OF_A_REQUEST} | load the | to load",
        ),
        about(
            Kind.OVERLOADED,
            _BUSY,
            statuses=[400, 422],
            subject=f"{_SERVING} | slots",
            absent=_NOT_OF_A_SERVER,
        ),
        about(
            Kind.OVERLOADED,
            "queue is | queue full | slots | slot",
            "full | busy | available",
            "full | busy | no",
            statuses=[400, 422],
            subject="queue | slots | slot",
            absent=_NOT_OF_A_SERVER,
        ),
        about(
            Kind.RATE_LIMIT,
            "too many | rate",
            "many requests | many concurrent | concurrent requests | limit exceeded | limit reached | rate exceeded",
            statuses=[400, 422],
            subject="too | rate",
            absent=f"{_NOT_OF_A_SERVER} | batch | input | inputs",
        ),
        about(
            Kind.SERVER_ERROR,
            "service | server | backend | upstream | gateway | engine | worker | instance",
            "service unavailable | is unavailable | internal server | shutting down | restarting | bad gateway",
            statuses=[400, 422],
            subject="service | server | backend | upstream | gateway | engine | worker | instance",
            absent=f"{_NOT_OF_A_SERVER} | your account | your region | region | country | for this model",
        ),
        about(
            Kind.SERVER_ERROR,
            "temporarily unavailable | currently unavailable | temporarily down | temporary failure | "
            "unavailable right",
            statuses=[400, 422],
            subject=_SERVING,
            absent=f"{_OF_A_REQUEST} | your account | your region | region | country",
        ),
    ),
    *cited(
        "plain English: servers that start, break or stop",
        about(
            Kind.MODEL_LOADING,
            "model | deployment | endpoint | engine | container | replica | server | instance | loading model | pod",
            """
            loading | not ready | starting | initializing | initialising | warming | warm up | provisioning |
            cold start |
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
            "model is | model has | model currently | instance is | engine is | server is | service is | backend is",
            "unloaded | loading | starting | initializing | warming | waking | not ready",
            subject="model | engine | instance | server | service | backend",
            absent=f"failed | error | cold | crashed | overloaded | {_OF_A_REQUEST}",
            statuses=[400, 422],
        ),
        about(
            Kind.SCALING_UP,
            "model | deployment | endpoint | instance | replicas | function",
            "scaled to | scale to | scaling up | scaled down | is cold | scaling from | from zero | "
            "paused | hibernating",
            statuses=[0, 400, 404, 409, 424, 425, 429, *range(500, 600)],
        ),
        about(
            Kind.GPU_OOM,
            "memory | vram | gpu | system resources | host memory",
            "out of | insufficient | not enough | requires more | allocate | allocation | unable to | "
            "exhausted | full model",
            absent="gpus available | no gpus | instances | capacity",
            statuses=[0, 400, 404, 424, *range(500, 600)],
        ),
        about(
            Kind.SERVER_ERROR,
            "model | engine | enginecore | worker | runner | process | server | container | backend | "
            "function | command",
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
            absent="your request | request body | json body | body of | the request | parameter | mcp | "
            "must be | response",
        ),
    ),
)
