"""Providers in China; their sentences are in Chinese or English, their codes are numbers."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, said

RULES = (
    *cited(
        "DashScope (Model Studio), Error codes",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            Arrearage CommodityNotPurchased PrepaidBillOverdue PostpaidBillOverdue AllocationQuota.FreeTierOnly
            FreeTierOnly
            """,
        ),
        coded(
            Kind.RATE_LIMIT,
            """
            Throttling.RateQuota Throttling.BurstRate Throttling.AllocationQuota Throttling LimitRequests
            limit_burst_rate
            """,
        ),
        coded(Kind.RATE_LIMIT, "insufficient_quota Throttling.AllocationQuota", message="error code token limit"),
        coded(
            Kind.RATE_LIMIT,
            """
            insufficient_quota
            """,
            message="allocated quota exceeded please increase your quota limit",
        ),
        coded(Kind.CONTENT_POLICY, "DataInspectionFailed DataInspection"),
        coded(Kind.PERMISSION, "AccessDenied.Unpurchased Workspace.AccessDenied"),
        coded(Kind.MODEL_NOT_FOUND, "ModelNotFound model_not_supported"),
        coded(Kind.TIMEOUT, "RequestTimeOut InternalError.Timeout ResponseTimeout"),
        coded(Kind.OVERLOADED, "ModelServingError ModelUnavailable SystemBusy"),
        coded(
            Kind.INVALID_REQUEST,
            """
            InvalidParameter InternalError.Algo.InvalidParameter
            """,
            is_weak=True,
            statuses=[0, 400],
        ),
        said(Kind.CONTEXT_LENGTH, "range of input length should be"),
        said(Kind.CONTENT_POLICY, "may contain inappropriate content"),
        said(
            Kind.RATE_LIMIT,
            """
            requests rate limit exceeded | request rate increased too quickly | allocated quota exceeded
            """,
        ),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            in good standing | free allocated quota exceeded | the free tier of the model has been exhausted
            """,
        ),
        said(Kind.OVERLOADED, "too many requests * system capacity"),
    ),
    *cited(
        "Moonshot (Kimi) platform, Errors",
        coded(Kind.QUOTA_EXHAUSTED, "exceeded_current_quota_error"),
        coded(Kind.OVERLOADED, "engine_overloaded_error"),
        coded(Kind.RATE_LIMIT, "rate_limit_reached_error"),
        coded(Kind.WINDOW_EXHAUSTED, "rate_limit_reached_error", message="tpd"),
        coded(Kind.AUTH, "invalid_authentication_error incorrect_api_key_error"),
        coded(Kind.MODEL_NOT_FOUND, "resource_not_found_error", message="model"),
        said(
            Kind.CONTEXT_LENGTH,
            """
            exceeded model token limit | input token length too long | invalid request * token limit
            """,
        ),
        said(Kind.CONTENT_POLICY, "considered high risk"),
        said(Kind.MODEL_NOT_FOUND, "not found the model"),
        said(Kind.AUTH, "invalid authentication | incorrect api key"),
    ),
    *cited(
        "Zhipu (Z.ai, BigModel), Error codes",
        coded(Kind.QUOTA_EXHAUSTED, "1113 1308 1309 1310", families="zhipu zai bigmodel"),
        coded(Kind.QUOTA_EXHAUSTED, "1113 1308 1309 1310", statuses=[429]),
        coded(Kind.RATE_LIMIT, "1302 1303", families="zhipu zai bigmodel"),
        coded(Kind.RATE_LIMIT, "1302 1303", statuses=[429]),
        coded(Kind.WINDOW_EXHAUSTED, "1304", statuses=[429]),
        coded(Kind.OVERLOADED, "1305 1312", statuses=[429]),
        coded(Kind.CONTENT_POLICY, "1301 1300", families="zhipu zai bigmodel"),
        coded(Kind.AUTH, "1000 1001 1002 1003 1004", families="zhipu zai bigmodel"),
        coded(Kind.ACCOUNT_BLOCKED, "1110 1111 1112 1121", families="zhipu zai bigmodel"),
        coded(Kind.MODEL_NOT_FOUND, "1211 1212", families="zhipu zai bigmodel"),
        coded(Kind.PERMISSION, "1220 1311", families="zhipu zai bigmodel"),
        coded(Kind.CONTEXT_LENGTH, "1261", families="zhipu zai bigmodel"),
        coded(Kind.SERVER_ERROR, "1230 1234 500", families="zhipu zai bigmodel"),
        said(Kind.QUOTA_EXHAUSTED, "no resource package | insufficient balance or no resource package"),
        said(Kind.MODEL_NOT_FOUND, "unknown model please check the model code"),
    ),
    *cited(
        "MiniMax, Error codes; MiniMax-M2 issue 62",
        coded(Kind.QUOTA_EXHAUSTED, "minimax1008 minimax2056 insufficient_balance_error"),
        coded(Kind.RATE_LIMIT, "minimax1002 minimax1039 minimax1041 minimax2045"),
        coded(Kind.AUTH, "minimax1004 minimax2049"),
        coded(Kind.CONTENT_POLICY, "minimax1026 minimax1027"),
        coded(Kind.TIMEOUT, "minimax1001"),
        coded(Kind.SERVER_ERROR, "minimax1000 minimax1013 minimax1033 minimax1024"),
        coded(Kind.OVERLOADED, "minimax2064 minimax1021"),
        coded(Kind.INVALID_REQUEST, "minimax2013 minimax1042"),
        coded(Kind.QUOTA_EXHAUSTED, "1008 2056", families="minimax"),
        coded(Kind.RATE_LIMIT, "1002 1039 1041", families="minimax"),
        coded(Kind.AUTH, "1004 2049", families="minimax"),
        coded(Kind.CONTENT_POLICY, "1026 1027", families="minimax"),
        coded(Kind.TIMEOUT, "1001", families="minimax"),
        coded(Kind.SERVER_ERROR, "1000 1013 1033 1024", families="minimax"),
        coded(Kind.INVALID_REQUEST, "2013 1042", families="minimax"),
        said(Kind.CONTENT_POLICY, "new_sensitive"),
        said(Kind.MODEL_NOT_FOUND, "invalid params unknown model | token plan not support model"),
    ),
    *cited(
        "Volcengine Ark, SiliconFlow, Baidu Qianfan, Tencent Hunyuan: error code pages",
        coded(
            Kind.QUOTA_EXHAUSTED,
            """
            AccountOverdueError 30001 30011 30014 InsufficientBalance ModelAccountRpmRateLimitExceededFree
            """,
        ),
        coded(Kind.QUOTA_EXHAUSTED, "SetLimitExceeded InferenceLimitReached AccountQuotaExceeded"),
        coded(
            Kind.RATE_LIMIT,
            """
            RateLimitExceeded.EndpointRPMExceeded RateLimitExceeded.EndpointTPMExceeded
            ModelAccountRpmRateLimitExceeded ModelAccountTpmRateLimitExceeded APIAccountRpmRateLimitExceeded
            ModelAccountIpmRateLimitExceeded rpm_rate_limit_exceeded tpm_rate_limit_exceeded
            """,
        ),
        coded(Kind.OVERLOADED, "RequestBurstTooFast 50505 server_high_load"),
        coded(
            Kind.CONTENT_POLICY,
            """
            SensitiveContentDetected InputTextSensitiveContentDetected OutputTextSensitiveContentDetected
            InputImageSensitiveContentDetected InputTextRiskDetection OutputTextRiskDetection
            ContentSecurityDetectionError
            """,
        ),
        coded(
            Kind.MODEL_NOT_FOUND,
            """
            InvalidEndpointOrModel.NotFound ModelNotOpen InvalidEndpoint.ClosedEndpoint 20012 UnsupportedModel
            """,
        ),
        coded(Kind.PERMISSION, "AccessDenied OperationDenied.ServiceNotOpen ServiceNotOpen", is_weak=True),
        coded(Kind.TIMEOUT, "GatewayTimeout"),
        coded(Kind.RATE_LIMIT, "336501 336502"),
        coded(Kind.OVERLOADED, "336100"),
        said(Kind.OVERLOADED, "system is too busy now"),
        said(
            Kind.QUOTA_EXHAUSTED,
            """
            reached the set inference limit | valid coding plan subscription | requires paid balance
            """,
        ),
        said(Kind.RATE_LIMIT, "tpm limit reached | rpm limit reached"),
    ),
    *cited(
        "Chinese sentences in public issues",
        said(
            Kind.QUOTA_EXHAUSTED,
            "余额不足 | 账户已欠费 | 额度不足 | 额度已用完 | 用量上限 | 请充值 | 欠费 | 配额不足 | 额度已用尽",
        ),
        said(Kind.RATE_LIMIT, "速率限制 | 请求过于频繁 | 请求频率 | 并发请求已达上限 | 并发数 | 访问频率 | 限流"),
        said(
            Kind.OVERLOADED,
            "负载已饱和 | 负载较高 | 访问量过大 | 服务暂时不可用 | 系统繁忙 | 服务繁忙 | 高峰时段 | 服务器繁忙",
        ),
        said(Kind.AUTH, "身份验证 | 无效的令牌 | 令牌已过期 | 令牌无效 | api key 无效 | 鉴权失败 | 认证失败"),
        said(Kind.MODEL_NOT_FOUND, "模型不存在 | 无可用渠道 | 模型已下线 | 未找到模型"),
        said(Kind.CONTENT_POLICY, "敏感内容 | 违规 | 不安全或敏感 | 内容安全"),
        said(Kind.PERMISSION, "无权访问 | 无权限"),
        said(Kind.CONTEXT_LENGTH, "超过最大长度 | 超出最大长度 | 上下文长度"),
        said(Kind.TIMEOUT, "超时"),
    ),
)
