"""Intermediaries between a client and a provider: CDNs, proxies, ingresses, load balancers, platforms."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import cited, coded, exactly, said

RULES = (
    *cited(
        "Cloudflare, 1xxx errors",
        coded(
            Kind.BLOCKED,
            """
            cloudflare1005 cloudflare1006 cloudflare1007 cloudflare1008 cloudflare1009 cloudflare1010 cloudflare1012
            cloudflare1020 cloudflare1106
            """,
        ),
        coded(Kind.RATE_LIMIT, "cloudflare1015 cloudflare1027"),
        coded(
            Kind.NETWORK,
            """
            cloudflare1000 cloudflare1001 cloudflare1002 cloudflare1016 cloudflare1018 cloudflare1023 cloudflare1033
            cloudflare1034
            """,
        ),
        coded(Kind.SERVER_ERROR, "cloudflare1101 cloudflare1104 cloudflare1019"),
        coded(Kind.OVERLOADED, "cloudflare1102"),
        said(
            Kind.NETWORK,
            """
            cloudflare tunnel error | web server is down | origin is unreachable | argo tunnel error
            """,
        ),
        said(
            Kind.BLOCKED,
            """
            just a moment | attention required | enable javascript and cookies | sorry you have been blocked |
            checking your browser | access denied * cloudflare
            """,
        ),
    ),
    *cited(
        "Envoy, response flags and local replies; Istio",
        said(Kind.OVERLOADED, "reset reason overflow | envoy overloaded"),
        said(
            Kind.TIMEOUT,
            """
            upstream request timeout | stream timeout | request timeout | response timeout |
            upstream max stream duration
            """,
        ),
        said(Kind.CONNECT_TIMEOUT, "reset reason connection timeout"),
        said(
            Kind.NETWORK,
            """
            upstream connect error | disconnect reset before headers | remote connection failure |
            connection termination | connection failure | delayed connect error | no healthy upstream |
            no_healthy_upstream | upstream reset | remote reset | protocol error | cluster not found |
            upstream_reset_before_response_started
            """,
        ),
        exactly(Kind.RATE_LIMIT, "local_rate_limited | rate_limited | over limit"),
        said(Kind.WRONG_PATH, "route not found | route_not_found"),
        said(Kind.AUTH, "jwt is missing | jwt verification fails | jwt is expired | rbac access denied"),
        said(Kind.AUTH, "jwt issuer is not configured | jwks"),
    ),
    *cited(
        "nginx and its ingress, Apache, HAProxy, Traefik, Caddy",
        said(Kind.MISROUTED, "plain http request was sent to https port", statuses=[400]),
        said(Kind.PAYLOAD_TOO_LARGE, "request header or cookie too large", statuses=[400, 431, 494]),
        said(Kind.WRONG_PATH, "default backend 404"),
        said(
            Kind.SERVER_ERROR,
            """
            bad gateway | no server is available to handle this request | error reading from remote server |
            proxy error | internal server error | no available server
            """,
        ),
        said(
            Kind.TIMEOUT,
            """
            gateway time out | gateway timeout | server didn t respond in time | server did not respond in time
            """,
        ),
        said(Kind.OVERLOADED, "service temporarily unavailable nginx"),
    ),
    *cited(
        "Kubernetes, Knative, Google Cloud Run and load balancing, Vercel, Heroku, Fly, Render, Railway, Azure",
        coded(Kind.NETWORK, "kubernetesServiceUnavailable"),
        coded(Kind.OVERLOADED, "kubernetesServiceUnavailable", message="too many | overloaded"),
        coded(Kind.WRONG_PATH, "kubernetesNotFound"),
        coded(Kind.AUTH, "kubernetesUnauthorized"),
        coded(Kind.PERMISSION, "kubernetesForbidden"),
        coded(Kind.TIMEOUT, "kubernetesTimeout kubernetesServerTimeout"),
        coded(Kind.RATE_LIMIT, "kubernetesTooManyRequests"),
        said(Kind.MODEL_LOADING, "activator request timeout | activator overload"),
        said(
            Kind.NETWORK,
            """
            no endpoints available for service | dial tcp | connection refused | connection reset by peer |
            no such host | econnrefused | econnreset | enotfound | unable to connect to the upstream |
            no route to host | failed to connect to | error forwarding request | upstream prematurely closed |
            i o timeout connecting | getaddrinfo | broken pipe | other side closed | socket hang up |
            connection was reset | connection error | websocket closed | premature close | stream closed unexpectedly
            | connection closed | connection lost | cannot connect to host | can t connect to |
            connection attempts failed | connect call failed | could not contact dns | could not resolve host |
            fetch failed | error trying to connect | failed to fetch | upstream connection | connection aborted |
            name resolution
            """,
        ),
        said(
            Kind.OVERLOADED,
            """
            no available instance | rate exceeded | the request was aborted because there was no available instance |
            container instance limit
            """,
        ),
        said(
            Kind.TIMEOUT,
            """
            function_invocation_timeout | edge_function_invocation_timeout | gateway_timeout | task timed out after |
            upstream response timeout | backend timeout | context deadline exceeded
            """,
        ),
        said(
            Kind.SERVER_ERROR,
            """
            function_invocation_failed | internal_server_error | no_response_from_function |
            middleware_invocation_failed
            """,
        ),
        said(Kind.OVERLOADED, "function_throttled | too_many_forks"),
        said(Kind.WRONG_PATH, "deployment_not_found | no such app | application not found | there s nothing here"),
        said(Kind.PAYLOAD_TOO_LARGE, "function_payload_too_large | request_body_too_large"),
        said(Kind.SERVER_ERROR, "application error | application failed to respond"),
        said(Kind.CONNECT_TIMEOUT, "connect timeout | connection timed out | connection timeout"),
    ),
)
