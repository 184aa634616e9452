"""Sentences that many providers share, in plain English."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, exactly, said

RULES = (
    *cited(
        "what accounts without money are told",
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            insufficient credit | insufficient funds | insufficient quota | insufficient account balance |
            insufficient * balance | balance is not enough | balance is insufficient | balance is too low |
            out of credits | run out of credits | ran out of credits | no credits remaining | no credits left |
            not enough credits | used all available credits | exhausted your credits | requires at least * in credits
            | credits are depleted | credits have been depleted | credits have expired | credits exhausted |
            credits are exhausted | does not have any credits | does not have enough credits | add credits to |
            add more credits | purchase more credits | depleted your * credits | credit limit has been reached |
            payment required | payment is required | billing or payment information | payment method * required |
            add a payment method | a valid payment method | billing is not active | billing not active |
            billing account * disabled | billing to be enabled | billing is disabled | enable billing |
            billing hard limit | unpaid invoice | overdue payment | account is overdue | account overdue |
            overdue balance | outstanding balance | account is not active * billing | account in good standing |
            please recharge | please top up | top up your | spend limit | spending limit | spending cap |
            monthly budget | budget exceeded | exceeded your budget | exceeded * budget | reached your usage limit |
            reached the usage limit | usage limit reached | usage limit has been reached | usage limit exceeded |
            usage quota | hit your usage limit | hit your limit | usage limits * regain access | exceeded your monthly
            | monthly limit | monthly quota | monthly usage limit | monthly token limit | monthly included credits |
            free trial * expired | trial has expired | trial has ended | free trial has ended | free quota * exhausted
            | free tier * exhausted | subscription * expired | subscription has ended | no active subscription |
            active subscription required | requires a subscription | subscription is required | quota exhausted |
            quota is exhausted | quota has been exhausted | exhausted your quota | quota * used up |
            upgrade your plan to continue | prepayment credits | weekly limit | weekly usage | weekly quota |
            per month | per week | session usage limit | exceeded your current token quota | hour usage quota |
            your plan s limit | dunning decision | check your account balance | not enough money | balance used up |
            balance is used up | deposit required | in arrears
            """,
        ),
        said(
            Kind.WINDOW_EXHAUSTED,
            """
            per day | requests per day | tokens per day | daily limit | daily quota | daily request limit |
            daily token limit | daily usage limit | quota for today | today s quota | daily free | a day limit |
            limit for today | per 24 hours | daily rate limit
            """,
            statuses=[0, 402, 403, 429],
        ),
    ),
    *cited(
        "what callers without rights are told",
        said(
            Kind.AUTH,
            """
            invalid api key | invalid api_key | api key is invalid | api key is not valid | api key is missing |
            api key is required | api key required | no api key | missing api key | missing an api key |
            api key has expired | api key is expired | api key has been revoked | api key was revoked |
            api key has been disabled | api key is disabled | api key has been deactivated | api key * leaked |
            authentication failure | authentication required | failed to authenticate | could not authenticate |
            not authenticated | user not authenticated | authenticate with | authorization header | missing bearer |
            invalid bearer | bearer token | invalid token | invalid access token | invalid authorization |
            invalid credentials | token has expired | token is expired | token expired | expired token |
            token has been revoked | oauth token | missing subscription key | no auth credentials | no credentials |
            credentials are missing | missing authentication | valid authentication credentials | unregistered callers
            | jwt expired | invalid jwt | signature * does not match | no cookie auth credentials |
            unable to verify your identity | invalid * key provided | wrong api key | api token is invalid
            """,
        ),
        said(Kind.AUTH, "unauthorized", statuses=[401, 403]),
        said(
            Kind.ACCOUNT_BLOCKED,
            """
            account has been deactivated | account is deactivated | account has been suspended | account is suspended
            | account suspended | account has been disabled | account is disabled | account has been terminated |
            account has been blocked | account is blocked | account has been banned | account has been locked |
            organization has been disabled | organization has been restricted | organization is restricted |
            organization has been deactivated | user has been banned | project has been denied access |
            project has been suspended | access terminated | consumer has been suspended | account is inactive |
            api access blocked | workspace is disabled | project is archived | organization is disabled
            """,
        ),
        said(
            Kind.BLOCKED,
            """
            location is not supported | country region or territory not supported | not available in your region |
            not available in your country | unsupported country | region is not supported |
            not supported in your region | ip address is not allowed | ip is not allowed | ip not authorized |
            ip not allowed | ip address is blocked | ip * not in * list | ip address * not * allowlist |
            virtual network firewall rules | blocked by * firewall | blocked by network policy | request blocked |
            access from * not allowed | public access is disabled | public network access | error 1020 |
            blocked by our security | web application firewall
            """,
        ),
        said(
            Kind.PERMISSION,
            """
            does not have permission | do not have permission | does not have access | do not have access |
            don t have access | doesn t have access | not have access to | has no access to | no permission |
            not authorized to | not authorised to | not permitted | not allowed to access | not allowed to use |
            permission denied | not enabled for your |
            not available for your account | not yet available for this account | not allowed for this account |
            not allowed for your | not available for this account | not available on your plan |
            not available on your current plan | requires a higher tier | upgrade to access | insufficient permissions
            | insufficient permission | missing scopes | must be verified to | organization must be verified |
            accept the terms | gated model | gated repo | access to model * is restricted | only available to |
            not entitled | opt in to | requires approval | not enabled in your account
            """,
            statuses=[0, 400, 401, 403, 451],
        ),
        said(
            Kind.PERMISSION, "access denied | access is denied | access to * denied", statuses=[0, 400, 403, 404, 451]
        ),
    ),
    *cited(
        "what is said of models that are not there",
        said(
            Kind.MODEL_NOT_FOUND,
            """
            model * not found | model not found | model * does not exist | model * doesn t exist |
            model does not exist | not found the model | no such model | unknown model | invalid model |
            invalid model name | model * is not available | model * not available | model * unavailable for |
            model is not available | model is not supported | requested model * not supported |
            model * is not supported | unsupported model | model * has been deprecated | model * is deprecated |
            model * has been retired | model * was retired | model * deprecated | model * has been decommissioned |
            model * decommissioned | model * no longer available | model * no longer supported |
            reached its end of life | reached end of life | model * not deployed | model * isn t deployed |
            model * is not deployed | model * disabled | not a valid model | no model named | no models loaded |
            model * not exist | model identifier is invalid | model * is unknown | could not find model |
            couldn t find model | cannot find model | can t find model | unable to find model | model is not loaded |
            model * not loaded | deployment * does not exist | deployment * not found | publisher model * not found |
            model * has been removed | engine not found | no endpoints found | no provider available | try pulling it
            | not found for api version | does not support this model | is not a valid model id |
            model * has been shut down | model * sunset | no available channel | no available channels |
            model * was not found | model * is retired | not found for account | model id * not found |
            inaccessible and or not deployed | no deployments available | no healthy deployments * model
            """,
            statuses=[0, 400, 403, 404, 410, 422, 424, 500, 503],
        ),
    ),
    *cited(
        "what is said of prompts that are too long",
        said(
            Kind.CONTEXT_LENGTH,
            """
            maximum context length | max context length | maximum context limit | context length exceeded |
            context limit exceeded | exceed context limit | exceeds context limit | exceeds the context |
            context window exceeds | exceed the context window | exceeds the context window | exceeds context window |
            context window of | context window limit | context window exceeded | exceeded max context length |
            exceeds the model s context | exceeds the model s maximum | exceed the model s |
            longer than the model s context length | model s context length | context length of the model |
            context length is only | prompt is too long | prompt too long | input is too long | input too long |
            input context is too long | input length exceeds | input length and * exceed | prompt length exceeds |
            prompt contains too many tokens | too many tokens | too many total tokens |
            exceeds the maximum number of tokens | exceeds the maximum allowed number of tokens |
            maximum number of tokens allowed | maximum allowed number of input tokens |
            reduce the length of the messages | reduce the length of your | reduce the length of the prompt |
            reduce your prompt | reduce the length of either one | input tokens exceed | input token count * exceeds |
            input token count * must be | token limit exceeded | exceeds the token limit |
            tokens in request more than max tokens allowed | maximum prompt length | maximum input length |
            prompt exceeds | tokens max_new_tokens must be | tokens * max_new_tokens * must be |
            must have less than * tokens | larger than the maximum context | larger than the context |
            exceeds the available context |
            exceeds the context length | current length is * while limit is | exceeds model s context |
            the conversation is too long | messages resulted in * tokens | requested * tokens * maximum |
            tokens which exceeds | exceeds the limit of * tokens | exceeded the context |
            maximum tokens * model * supports | maximum model length | exceeds max_model_len |
            sequence length * longer than | exceeds max length | size limit exceeded * tokens |
            longer than the maximum model length | the context length | inputs tokens | input_tokens * exceed |
            exceeds context size | decoder prompt * longer than | prompt * longer than the maximum
            """,
        ),
        said(
            Kind.INVALID_REQUEST,
            """
            maximum allowed number of output tokens | max_tokens is too large | max_tokens must be at least |
            max_completion_tokens is too large | supports at most * completion tokens |
            string too long expected a string with maximum length | maximum number of output tokens | array too long |
            does not support | not supported with this model | not supported by this model |
            not supported for this model | unsupported parameter | unsupported value | unrecognized request argument |
            extra inputs are not permitted | field required | unknown parameter
            """,
            statuses=[0, 400, 422],
        ),
    ),
    *cited(
        "what is said of content that is refused",
        said(
            Kind.CONTENT_POLICY,
            """
            content management policy | content filtering policy | blocked by content filtering | content filter |
            content policy | content policies | usage policies | usage policy | usage guidelines |
            violates our | violating our | violate our | safety system | safety filters | safety policy |
            safety reasons | safety checks | flagged by * moderation | flagged as potentially | was flagged for |
            inappropriate content | sensitive content | prohibited content | harmful content | blocked due to |
            blocked by safety | blocked by guardrail | guardrail * intervened | sensitive words detected |
            terms of service violation | violation of provider terms of service | acceptable use policy |
            responsible ai | blocked by policy | content was blocked | content moderation | unsafe content |
            moderation policy | moderation check | contains sensitive | invalid prompt * flagged |
            failed content moderation | potentially violating
            """,
        ),
    ),
    *cited(
        "what overloaded and broken servers say",
        said(
            Kind.OVERLOADED,
            """
            is overloaded | are overloaded | currently overloaded | overloaded please |
            overloaded try again | temporarily overloaded | over capacity | at capacity |
            at full capacity | at maximum capacity | capacity exceeded | out of capacity | no capacity |
            not enough capacity | insufficient capacity | capacity limits | capacity constraints | lacks capacity |
            limited capacity | capacity available | high demand | high traffic | heavy load | high load | under load |
            unusually high | server is busy | server busy | servers are busy | system is busy | system busy |
            service is busy | too busy | is currently busy | engine is busy | queue is full | queue full |
            request queue | maximum pending requests | maximum queue | peak load | peak hours |
            resource exhausted please try again | workers are busy | all workers | all slots are busy |
            no available slots | no slots available | worker local total request limit | no available workers |
            no instances available | no healthy * workers | concurrency * of this model | tier capacity |
            degraded function | system capacity | load is too high | overloaded right now | become overloaded |
            dynamic * throttled * capacity | server is overwhelmed | temporarily out of | shedding load | load shed
            """,
        ),
        said(Kind.OVERLOADED, "peak load | experiencing high demand | degraded function", statuses=[400]),
        exactly(Kind.OVERLOADED, "overloaded | * overloaded | busy | model overloaded"),
        exactly(Kind.TIMEOUT, "timeout | timeout error | gateway time out"),
        exactly(Kind.RATE_LIMIT, "throttled | throttling | slow down"),
        exactly(
            Kind.NETWORK,
            """
            terminated | connection error | network error | fetch failed | socket hang up | aborted
            """,
        ),
        said(
            Kind.GPU_OOM,
            """
            cuda out of memory | out of memory | outofmemoryerror | hip out of memory | insufficient memory |
            requires more system memory | not enough memory | not enough vram | insufficient vram | failed to allocate
            | memory allocation failed | unable to allocate | kv cache is full |
            no available memory for the cache blocks | insufficient system memory | insufficient gpu |
            no space left on device memory
            """,
        ),
        said(
            Kind.MODEL_LOADING,
            """
            currently loading | is still loading | model is warming up | warming up | model is starting |
            is starting up | still starting | not ready for inference | model is not ready | cold start | scaling up |
            scaled to zero | scale from zero | being deployed | deployment is scaling | model not ready |
            model loading | is being loaded | loading the model | model is initializing | is initializing |
            endpoint is paused | spinning up | is waking up | still being provisioned | container is starting
            """,
        ),
        said(
            Kind.TIMEOUT,
            """
            timed out | timeout exceeded | timeout error | was timeout | idle timeout | timeout while | timeout after
            | read timeout | upstream timeout | timeout occurred | inference timeout | generation timeout |
            timeout waiting | deadline exceeded | took too long | deadline expired | exceeded the timeout |
            exceeded timeout
            """,
        ),
        said(
            Kind.SERVER_ERROR,
            """
            model has crashed | model crashed | enginedeaderror | enginecore encountered an issue | engine is dead |
            engine loop is not running | unexpectedly stopped | no longer running | background loop has errored |
            worker died | terminated unexpectedly | segmentation fault | cuda error | illegal memory access |
            device side assert | nccl error
            """,
            statuses=[0, 400, 424, *range(500, 600)],
        ),
        said(
            Kind.RATE_LIMIT,
            """
            rate limit | rate limits | rate limited | ratelimit | too many requests | too many concurrent |
            too many api requests | request limit | requests per minute | tokens per minute | requests per second |
            per minute | per second | concurrency limit | concurrent requests | max concurrency | maximum concurrency
            | been throttled | is throttled | are throttled | being throttled | throttling error | slow down |
            rate is too high | exceeded * limit | quota exceeded | exceeded quota |
            retry your request after | local_rate_limited | requests rate | request rate | simultaneous requests |
            exceeded the limit
            """,
        ),
        said(
            Kind.CLIENT_CANCELLED,
            """
            client disconnected | client closed request | client closed the connection | request canceled |
            request cancelled | context canceled | cancelled by the caller | cancelled by the client |
            canceled by the client | operation was cancelled | request was aborted | operation was canceled
            """,
            statuses=[0, 408, 499, 500, 503],
        ),
        said(
            Kind.BAD_SAMPLE,
            """
            failed to parse tool call | failed to parse function | malformed function call |
            could not parse * tool call | generated json does not match | failed to call a function |
            tool call validation failed | invalid tool call generated | failed to generate json |
            failed to validate json | model produced invalid | model output * could not be parsed |
            failed to parse generated | output is not valid json | generated tool call * invalid
            """,
        ),
        said(
            Kind.WRONG_PATH,
            """
            page not found | unknown request url | invalid url | no route | cannot post | unknown endpoint |
            unknown path | no such endpoint | endpoint not found | path not found | unrecognized request url |
            no matching route | 404 not found | unsupported endpoint | unexpected endpoint | url not found
            """,
        ),
    ),
)
