"""Connection errors: their names in Python and Node, and the messages of HTTP clients."""

from __future__ import annotations

from llm_guard.outcome import FailureKind as Kind
from llm_guard.resilience.classification.rules import RuleBook, cited, said

OF_KIND = {
    "dns": Kind.NETWORK,
    "connect_refused": Kind.NETWORK,
    "unreachable": Kind.NETWORK,
    "reset": Kind.NETWORK,
    "connect_timeout": Kind.CONNECT_TIMEOUT,
    "tls": Kind.NETWORK,
    "tls_certificate": Kind.CERTIFICATE,
    "proxy": Kind.EGRESS,
    "read_timeout": Kind.TIMEOUT,
    "write_timeout": Kind.TIMEOUT,
    "total_timeout": Kind.TIMEOUT,
    "idle_timeout": Kind.TIMEOUT,
    "timeout": Kind.TIMEOUT,
    "pool_timeout": Kind.OWN_POOL,
    "incomplete_read": Kind.TRUNCATED,
    "eof": Kind.TRUNCATED,
    "disconnect": Kind.NETWORK,
    "server_disconnect": Kind.NETWORK,
    "server_disconnected": Kind.NETWORK,
    "stale_connection": Kind.RETIRED,
    "protocol": Kind.NETWORK,
    "websocket": Kind.NETWORK,
    "h2_goaway": Kind.RETIRED,
    "h2_refused_stream": Kind.RETIRED,
    "h2_reset": Kind.NETWORK,
    "client_disconnect": Kind.CLIENT_CANCELLED,
    "client_cancel": Kind.CLIENT_CANCELLED,
    "cancelled": Kind.CLIENT_CANCELLED,
    "local_resource": Kind.OWN_RESOURCES,
}
"""Kind by the phase in which a connection failed; a sentence below may be more specific."""

RULES = RuleBook(
    (
        *cited(
            "OpenSSL verify errors, as ssl and node:tls name them",
            said(
                Kind.CERTIFICATE,
                """
            certificate verify failed | certificate_verify_failed | certificate has expired | cert_has_expired |
            self signed certificate | self_signed_cert_in_chain | depth_zero_self_signed_cert | hostname mismatch |
            doesn t match | does not match certificate | unable to get local issuer certificate |
            unable_to_verify_leaf_signature | wrong version number | wrong_version_number | unknown ca |
            unsupported protocol | unsupported_protocol | err_tls_cert_altname_invalid | altnames |
            no alternative certificate | certificate is not yet valid | certificate required | unrecognized name |
            http_request | no_shared_cipher | tlsv1_alert_protocol_version | alert protocol version | unknown protocol
            | packet length too long | handshake failure | record layer failure
            """,
            ),
        ),
        *cited(
            "errno: what this machine lacks",
            said(
                Kind.OWN_RESOURCES,
                """
            too many open files | emfile | enfile | cannot assign requested address | eaddrnotavail |
            no buffer space available | enobufs | cannot allocate memory | enomem | resource temporarily unavailable |
            can t start new thread
            """,
            ),
            said(Kind.OWN_POOL, "pooltimeout | connection pool is full | pool timeout"),
        ),
        *cited(
            "httpx, aiohttp, requests, undici, botocore, HTTP/2 (RFC 9113)",
            said(
                Kind.RETIRED,
                """
            server disconnected without sending a response | remote end closed connection without response |
            refused_stream | remotedisconnected | connectionterminated error_code 0 | goaway | error_code 7 |
            connection was closed before we received a valid response
            """,
            ),
            said(
                Kind.MISROUTED,
                """
            too many redirects | toomanyredirects | exceeded maximum allowed redirects | invalid url |
            unsupported protocol scheme | missing an http or https protocol | unsupportedprotocol | invalidurl |
            no scheme supplied | nonhttpurl | no host supplied
            """,
            ),
            said(
                Kind.CLIENT_CANCELLED,
                """
            client disconnected | downstream client disconnected | request was aborted | aborterror |
            the user aborted a request | get_cancelled_exc_class | cancellederror | clientdisconnect
            """,
            ),
            said(Kind.PERMISSION, "proxyerror 403 | 403 forbidden", families="proxy"),
            said(Kind.AUTH, "407 | proxy authentication required", families="proxy"),
            said(
                Kind.TIMEOUT,
                """
            readtimeout | read timed out | read timeout | bodytimeout | headerstimeout | und_err_headers_timeout |
            und_err_body_timeout | writetimeout | timeouterror | read operation timed out | sockettimeout
            """,
            ),
            said(
                Kind.CONNECT_TIMEOUT,
                """
            connecttimeout | connect timeout | und_err_connect_timeout | etimedout | connection timed out |
            connectiontimeout | connect timed out
            """,
            ),
            said(
                Kind.TRUNCATED,
                """
            incomplete chunked read | incompleteread | clientpayloaderror | response payload is not completed |
            content length mismatch | premature close | err_incomplete_chunked_encoding | transferencodingerror |
            terminated | aborted prematurely | res_content_length_mismatch
            """,
            ),
            said(
                Kind.NETWORK,
                """
            econnrefused | connection refused | econnreset | connection reset | enotfound | getaddrinfo |
            name or service not known | eai_again | temporary failure in name resolution | nodename nor servname |
            no route to host | ehostunreach | network is unreachable | enetunreach | epipe | broken pipe |
            socket hang up | other side closed | connection aborted | eof occurred in violation of protocol |
            connection closed | network error | fetch failed | websocket closed | decompressing | decodingerror |
            server closed
            """,
            ),
        ),
    )
)
