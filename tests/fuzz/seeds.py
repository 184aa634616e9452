"""Seeds for mutations: well-formed inputs and some seen in production.

Recorded streams, the errors of `tests/data`, the example configs, requests as SDKs write them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]
DATA = _ROOT / "tests" / "data"
STREAMS = {path.stem: path.read_bytes() for path in sorted((DATA / "streams").glob("*.sse"))}


def answer(status: int, headers: dict[str, str], body: str) -> bytes:
    """Encodes an error response as text: the status, a line for each header, an empty line, the body."""
    lines = [str(status), *(f"{name}: {value}" for name, value in headers.items())]
    return ("\n".join(lines) + "\n\n" + body).encode("utf-8", "surrogatepass")


def _answers() -> tuple[bytes, ...]:
    records: list[dict[str, Any]] = [
        json.loads(line)
        for name in ("corpus.jsonl", "errors.jsonl", "unseen.jsonl")
        for line in (DATA / name).read_text("utf-8").splitlines()
        if line
    ]
    return tuple(
        answer(record.get("status") or 200, record.get("headers") or {}, record.get("body") or "")
        for record in records
        if isinstance(record.get("body", ""), str)
    )


ANSWERS = _answers()
LIMIT_HEADERS = (
    b"date: Tue, 03 Mar 2026 10:00:00 GMT\nretry-after: Tue, 03 Mar 2026 10:00:07 GMT\n",
    b"""retry-after: 20
retry-after-ms: 19870
x-ratelimit-limit-requests: 500
x-ratelimit-remaining-requests: 0
x-ratelimit-reset-requests: 6m0s
x-ratelimit-limit-tokens: 30000
x-ratelimit-remaining-tokens: 12
x-ratelimit-reset-tokens: 59.976s
""",
    b"""anthropic-ratelimit-requests-limit: 50
anthropic-ratelimit-requests-remaining: 49
anthropic-ratelimit-requests-reset: 2026-03-03T10:00:02Z
anthropic-ratelimit-unified-5h-status: rejected
anthropic-ratelimit-unified-5h-reset: 1772535600
""",
    b'ratelimit-policy: "burst";q=100;w=60\nratelimit: "burst";r=0;t=17\n',
    b"ratelimit: limit=100, remaining=3, reset=12\n",
    b"x-ratelimit-limit-tokens: 0\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 1s\n",
    b"""ratelimitbysize-reset: 9
x-ratelimitbysize-limit-minute: 500000
x-ratelimitbysize-remaining-minute: 0
""",
    b"x-ratelimit-limit: 20\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1772532060000\nx-should-retry: true\n",
    b"x-ms-retry-after-ms: 7000\nretry-after: 14.07:13:56\nx-amzn-errortype: ThrottlingException:http://a/\n",
    b"retry-after: 1h2m3.5s\nx-retry-after: 2.12 days\ncf-mitigated: challenge\nx-envoy-overloaded: true\n",
)
CONFIGS = (
    b"models: " + b"[" * 500,
    b"a: &a [x, x, x, x]\nb: &b [*a, *a, *a, *a]\nmodels: &c {d: *b, e: *c}\n",
    *((path.read_bytes()) for path in sorted((_ROOT / "config").glob("*.yaml"))),
    b"""upstreams: {u: {dialect: openai, base_url: "http://h/v1", api_key: "${KEY}"}}
models: {m: {deployments: [{upstream: u}]}}
""",
    b"""server:
  client_keys: [{name: a, key: "${KEY}"}, {name: "${OTHER}", key: "${KEY:-x}", priority: low}]
  port: "${PORT}"
ops: {token: "${KEY}"}
upstreams:
  u: &u
    dialect: anthropic
    base_url: "https://${HOST}/"
    errors: [{match: {status: [5xx], message: "*${KEY}*"}, kind: auth}]
  v: *u
defaults: {timeout: {idle: "${TIME}"}, retry: {max_attempts: "${NUMBER}", budget: {ratio: 0.5}}, hedge: {after: p95}}
models:
  m:
    deployments: [{upstream: u, model: "${OTHER}"}, {upstream: v, weight: 2}]
    fallbacks: [n]
    stream: {keepalive: null}
  n: {deployments: [{upstream: "${KEY:-u}"}], breaker: {state: "${KEY}"}, capacity: {concurrency: "${NUMBER}"}}
  "*": {deployments: [{upstream: u}], fallbacks: ["${OTHER}", m]}
""",
)
_CHAT = {
    "model": "gpt-4o", "stream": True, "n": 2, "max_tokens": 64, "store": False,
    "messages": [{"role": "system", "content": "model"}, {"role": "user", "content": 'say "model": "x" \u2028 😀'}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"model": {"type": "string"}}}}],
}  # fmt: skip
_FORM = (
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="name=model"\r\n'
    b'Content-Type: audio/wav\r\n\r\nRIFF\x00\r\n--b\r\n'
    b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper-1\r\n--b\r\n'
    b'content-disposition: form-data; name=stream\r\n\r\ntrue\r\n--b--\r\n'
)  # fmt: skip
REQUESTS = (
    json.dumps(_CHAT).encode(),
    json.dumps(_CHAT, separators=(",", ":"), ensure_ascii=False).encode(),
    json.dumps(_CHAT, indent=1).encode(),
    b'{"input":"a","previous_response_id":"resp_1","conversation":null,"background":true,"model":"o3","model":"o4"}',
    b'{"messages":[{"content":"\\ud83d"}],"model":"a\\u0041","stream" : true}',
    _FORM,
    b"[1, 2]",
)
FORMS = (_FORM, _FORM.replace(b"\r\n\r\n", b"\r\nContent-Type: text/plain\r\n\r\n"))
CLIENT_HEADERS = (
    b"Host: gateway\nAuthorization: Bearer k\nContent-Type: application/json\nContent-Length: 2\nAccept-Encoding: br\n",
    b"Connection: keep-alive, X-Private\nX-Private: 1\nKeep-Alive: timeout=5\nTE: trailers\nTransfer-Encoding: br\n",
    b"Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Protocol: realtime, openai-insecure-api-key.k\n",
    b"x-api-key: k\napi-key: k\nX-LLM-Guard-Attempts: 7\nCookie: a=b\nSet-Cookie: a=b\nProxy-Authorization: Basic x\n",
    b"Content-Encoding: gzip\nExpect: 100-continue\nTrailer: a\nDate: x\nServer: y\nx_private: 1\nX-Empty:\n",
)
TEXTS = (
    "The quick brown fox jumps over the lazy dog, twice; then it sleeps. Nobody knows why.",
    "# Title\n\nSome text with `code` and 12:30 o'clock.\n\n```python\nprint('x')\n```\n",
    "\n\n今天天气很好。今天天气很好。 Ja, straße 12 34 😀😀 e\u0301",
    "aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa aaaaaaaa",
    "   \n\t ",
    "#",
)
