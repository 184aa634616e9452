"""Self-hosted servers. Their context window is a setting: another server may accept what one refuses."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "vLLM, entrypoints/openai; issues 19464, 1543",
        coded(Kind.SERVER_ERROR, "EngineDeadError AsyncEngineDeadError EngineGenerateError EngineCoreFatalError"),
        coded(Kind.GPU_OOM, "OutOfMemoryError torch.cuda.OutOfMemoryError"),
        said(
            Kind.SERVER_ERROR,
            """
            enginecore encountered an issue | background loop is stopped | background loop has errored |
            engine is not running | engine process failed | enginedeaderror | asyncenginedeaderror
            """,
            statuses=[0, 400, *range(500, 600)],
        ),
        said(Kind.CLIENT_CANCELLED, "client disconnected"),
        said(Kind.AUTH, "unauthorized", statuses=[401]),
        said(
            Kind.INVALID_REQUEST,
            """
            enable auto tool choice | does not support multimodal | is not a multimodal model | chat template
            """,
        ),
    ),
    *cited(
        "SGLang, router and managers",
        said(
            Kind.OVERLOADED,
            """
            the request queue is full | request queue is full | no available workers | all circuits open
            """,
            statuses=[0, 400, 429, *range(500, 600)],
        ),
        said(
            Kind.DEPLOYMENT_CONTEXT,
            """
            longer than the model s context length | input tokens * is longer than | is longer than the model
            """,
            families="sglang",
        ),
        said(Kind.SERVER_ERROR, "scheduler hit an exception | watchdog timeout | server is shutting down"),
        said(Kind.CLIENT_CANCELLED, "request is disconnected | is disconnected from the client side"),
        said(Kind.MODEL_LOADING, "server is not ready | server is still starting"),
        said(
            Kind.PREEMPTED,
            """
            aborted by a higher priority request | preempted by a higher priority | preempted by another request
            """,
        ),
    ),
    *cited(
        "TGI, router/src/infer and validation",
        coded(Kind.OVERLOADED, "overloaded"),
        coded(Kind.DEPLOYMENT_CONTEXT, "marktgi", message="max_new_tokens"),
        coded(Kind.DEPLOYMENT_CONTEXT, "marktgi", message="inputs must have less than"),
        coded(Kind.SERVER_ERROR, "incomplete_generation incomplete_generation_stream healthcheck request_failed"),
        said(Kind.CONTEXT_LENGTH, "inputs must have less than"),
    ),
    *cited(
        "llama.cpp, tools/server",
        coded(Kind.DEPLOYMENT_CONTEXT, "exceed_context_size_error markllamacpp"),
        coded(Kind.MODEL_LOADING, "unavailable_error", message="loading"),
        said(Kind.MODEL_LOADING, "loading model"),
        said(
            Kind.DEPLOYMENT_CONTEXT,
            """
            exceeds the available context size | context size has been exceeded |
            input is larger than the max context size | context shift is disabled | the context does not fit |
            too large to process | slot context | prompt is too long n_ctx
            """,
        ),
        said(Kind.OVERLOADED, "no slot available | slots are all busy | no idle slot"),
        said(
            Kind.BAD_SAMPLE,
            """
            failed to parse input at pos | failed to parse tool call arguments as json | syntax error while parsing
            """,
        ),
        said(Kind.MISROUTED, "this server does not support | not supported by this server", statuses=[0, 501]),
        said(Kind.GPU_OOM, "failed to find a memory slot | failed to allocate * buffer"),
    ),
    *cited(
        "Ollama, server and llm",
        said(
            Kind.GPU_OOM,
            """
            model requires more system memory | cudamalloc failed | unable to load full model on gpu |
            requires more vram
            """,
        ),
        said(
            Kind.OVERLOADED,
            """
            maximum pending requests exceeded | server busy please try again | too many concurrent requests
            """,
        ),
        said(Kind.MODEL_NOT_FOUND, "try pulling it first | model * not found"),
        said(
            Kind.SERVER_ERROR,
            """
            model runner has unexpectedly stopped | runner process has terminated |
            llama runner process has terminated | no longer running | error was encountered while running the model |
            failed to load model | error loading model | unable to load model
            """,
        ),
        said(Kind.CLIENT_CANCELLED, "request canceled | context canceled", statuses=[0, 499, 500, 503]),
        said(Kind.TIMEOUT, "timed out waiting for llama runner"),
        said(Kind.MODEL_LOADING, "waiting for server to become available"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            reached your weekly usage limit | reached your hourly usage limit | reached your session usage limit |
            reached your * usage limit | this model requires a subscription
            """,
        ),
        said(
            Kind.DEPLOYMENT_CONTEXT,
            """
            input length exceeds maximum context length | input exceeds maximum context length
            """,
            families="ollama",
        ),
        said(Kind.AUTH, "unauthorized", families="ollama", statuses=[401]),
        said(Kind.BAD_SAMPLE, "error parsing tool call | invalid character * looking for beginning"),
    ),
    *cited(
        "LM Studio: bodies in public issues",
        said(
            Kind.SERVER_ERROR,
            """
            model has crashed | exit code | model unloaded | channel error | failed to load model
            """,
            statuses=[0, 400, 404, *range(500, 600)],
        ),
        coded(Kind.GPU_OOM, "model_not_found", message="insufficient system resources"),
        said(Kind.GPU_OOM, "insufficient system resources"),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            no models loaded | multiple models are loaded | model * not loaded
            """,
            statuses=[0, 400, 404],
        ),
        said(
            Kind.DEPLOYMENT_CONTEXT,
            """
            trying to keep the first | context the overflows | not the beginning of context |
            greater than the context length | tokens to keep from the initial prompt | reached context length of |
            model is loaded with context length
            """,
        ),
        said(Kind.TIMEOUT, "timed out | link * timeout | timeout * link", families="lmstudio", statuses=[400]),
        said(Kind.MODEL_LOADING, "model is loading | model loading was stopped | loading aborted"),
    ),
)

SELF_HOSTED = frozenset({"vllm", "sglang", "tgi", "llamacpp", "ollama", "lmstudio", "local"})
"""Families with a context window that is a setting of the server."""

MARKS = {"markvllm": "vllm", "marktgi": "tgi", "markllamacpp": "llamacpp"}
"""Codewords for the shapes of a body that identify the engine."""
