"""Amazon: Bedrock, API Gateway, SageMaker and the load balancers before them."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, exactly, said

RULES = (
    *cited(
        "Amazon Bedrock, API error codes; API Gateway, gateway response types",
        coded(Kind.RATE_LIMIT, "ThrottlingException awsTooManyRequestsException ThrottledException"),
        coded(Kind.WINDOW_EXHAUSTED, "ThrottlingException", message="per day"),
        coded(Kind.OVERLOADED, "ThrottlingException", message="reached capacity"),
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            ServiceQuotaExceededException awsLimitExceededException INVALID_PAYMENT_INSTRUMENT
            """,
        ),
        coded(Kind.OVERLOADED, "awsServiceUnavailableException"),
        coded(Kind.MODEL_LOADING, "ModelNotReadyException"),
        coded(Kind.TIMEOUT, "ModelTimeoutException"),
        coded(
            Kind.SERVER_ERROR,
            """
            ModelErrorException ModelStreamErrorException InternalServerException InternalFailure
            """,
            is_weak=True,
            statuses=[0, 424, 500, 503],
        ),
        coded(Kind.RATE_LIMIT, "ModelErrorException ModelStreamErrorException", statuses=[429]),
        coded(Kind.INVALID_REQUEST, "ValidationException", is_weak=True, statuses=[0, 400]),
        coded(
            Kind.AUTH,
            """
            UnrecognizedClientException InvalidSignatureException ExpiredTokenException
            MissingAuthenticationTokenException IncompleteSignature InvalidClientTokenId ExpiredToken
            SignatureDoesNotMatch MissingAuthenticationToken OptInRequired
            """,
        ),
        coded(Kind.PERMISSION, "AccessDeniedException", is_weak=True),
        coded(Kind.MODEL_NOT_FOUND, "ResourceNotFoundException ModelNotFoundException", is_weak=True),
        coded(Kind.WRONG_PATH, "UnknownOperationException"),
        coded(Kind.CONFLICT, "ConflictException", is_weak=True),
        said(
            Kind.PERMISSION,
            """
            don t have access to the model | is not authorized to perform | model access is denied | aws marketplace |
            not authorized to invoke | use case details have not been submitted
            """,
        ),
        said(
            Kind.MODEL_NOT_FOUND,
            """
            provided model identifier is invalid | on demand throughput isn t supported |
            on demand throughput is not supported | marked by provider as legacy |
            could not resolve the foundation model | model version * end of its life | model is legacy |
            haven t been actively using the model
            """,
        ),
        said(
            Kind.AUTH,
            """
            security token included in the request | request signature we calculated | signature expired |
            unable to locate credentials | missing authentication token
            """,
        ),
        said(
            Kind.CONTEXT_LENGTH,
            """
            input is too long for requested model | too many input tokens | exceeds the maximum limit of * tokens |
            maximum tokens you requested exceeds
            """,
        ),
        said(Kind.WINDOW_EXHAUSTED, "too many tokens per day"),
        said(
            Kind.RATE_LIMIT,
            """
            too many tokens please wait | too many requests please wait | too many connections |
            your request rate is too high
            """,
        ),
        said(
            Kind.OVERLOADED,
            """
            bedrock is unable to process your request | reached capacity | unable to process your request
            """,
        ),
        exactly(Kind.QUOTA_EXHAUSTED, "limit exceeded", statuses=[429]),
        said(Kind.QUOTA_EXHAUSTED, "invalid_payment_instrument | valid payment instrument"),
        said(Kind.TIMEOUT, "endpoint request timed out | model has timed out"),
        said(
            Kind.SERVER_ERROR,
            """
            the system encountered an unexpected error | unable to process your request * unexpected
            """,
        ),
        said(Kind.CONTENT_POLICY, "blocked by guardrails | content filters"),
    ),
)
