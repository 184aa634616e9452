"""A table of mistakes in a config, each with the exact message that `llm-guard check --strict` prints for it."""

from __future__ import annotations

from dataclasses import dataclass

UPSTREAMS = """\
upstreams:
  a: {dialect: openai, base_url: "https://a.example/v1"}
  b: {dialect: openai, base_url: "https://b.example/v1"}
"""
MODELS = "models:\n  m: {deployments: [{upstream: a}]}\n"
VALID = UPSTREAMS + MODELS
"""Five lines: a section that a mistake appends begins on line 6."""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A config with one mistake. `message` is without the name of the file."""

    name: str
    text: str
    message: str
    in_schema: bool = False
    """True if the published JSON Schema refuses it too. It cannot compare names and values with each other."""


def _section(name: str, text: str, message: str, *, in_schema: bool = True) -> Mistake:
    """A mistake in a section behind the valid upstreams and models."""
    return Mistake(name, f"{VALID}{text}\n", f"6: {message}", in_schema)


def _upstream(name: str, keys: str, message: str, *, in_schema: bool = True) -> Mistake:
    """A mistake in an upstream, on line 2."""
    text = f"upstreams:\n  a: {{{keys}}}\n{MODELS}"
    return Mistake(name, text, f"2: upstreams.a.{message}", in_schema)


def _model(name: str, keys: str, message: str, *, in_schema: bool = True) -> Mistake:
    """A mistake in a model, on line 5."""
    return Mistake(name, f"{UPSTREAMS}models:\n  m: {{{keys}}}\n", f"5: models.m.{message}", in_schema)


_URL = "https://a.example/v1"
_DURATION = "write 200ms, 5s, 2m or 1h"
_SIZE = "write 64MiB, 512KiB or a number of bytes > 0"

SYNTAX = (
    Mistake("empty file", "", "1: the file is empty", in_schema=True),
    Mistake(
        "bracket of a list",
        f"{UPSTREAMS}models:\n  m: {{deployments: [{{upstream: a}}}}\n",
        "5:20: not YAML: this [ is not closed: , or ] is missing before line 5, column 34",
    ),
    Mistake(
        "bracket of a mapping",
        f"{UPSTREAMS}models:\n  m: {{deployments: [{{upstream: a}}]\nserver: {{port: 80}}\n",
        "5:6: not YAML: this { is not closed: , or } is missing before line 6, column 1",
    ),
    Mistake(
        "quote",
        'upstreams:\n  a: {dialect: openai, base_url: "https://a.example/v1}\n',
        '2:34: not YAML: this " is not closed: " is missing before the end of the file',
    ),
    Mistake(
        "tab",
        f"{UPSTREAMS}models:\n\tm: {{deployments: [{{upstream: a}}]}}\n",
        "5:1: not YAML: a tab: indent with spaces",
    ),
    Mistake(
        "indentation",
        f"{UPSTREAMS}models:\n  m:\n      deployments: [{{upstream: a}}]\n    fallbacks: []\n",
        "7:5: not YAML: wrong indentation, or an entry of a list without its dash: align it with the lines above",
    ),
    Mistake(
        "second colon",
        f"{VALID}server: host: 127.0.0.1\n",
        "6:13: not YAML: unexpected colon: put text with a colon in quotes, or start a new line",
    ),
    Mistake(
        "no colon", f"{VALID}server:\n  port 8080\n", "6: server: must be a mapping of keys, not text", in_schema=True
    ),
    Mistake(
        "variable without quotes",
        f"{VALID}ops: {{token: ${{TOKEN}}}}\n",
        "6:15: not YAML: while parsing a flow mapping, expected ',' or '}', but got '{'; between { } or [ ] put a "
        'variable in quotes: "${NAME}"',
    ),
    Mistake("key twice", f"{VALID}server: {{port: 1, port: 2}}\n", "6: server.port: duplicate key; first on line 6"),
    Mistake(
        "merge key",
        f"{VALID}server:\n  <<: {{port: 80}}\n",
        "7: server.<<: merge keys are not supported; put settings that all models share under defaults",
        in_schema=True,
    ),
    Mistake(
        "list instead of a mapping",
        "- upstreams\n",
        "1: the file must be a mapping of keys, not a list",
        in_schema=True,
    ),
    Mistake(
        "old key without quotes",
        f"{VALID}ops: {{token: *abc}}\n",
        "6:14: not YAML: found undefined alias; put text that begins with *, & or ! in quotes",
    ),
)
UNKNOWN_KEYS = (
    _section("section", "modles: {}", "modles: unknown key; did you mean models?"),
    _section("key of a section", "server: {prot: 80}", "server.prot: unknown key; did you mean port?"),
    _section(
        "key deep in a section",
        "defaults: {retry: {budget: {ratoi: 1}}}",
        "defaults.retry.budget.ratoi: unknown key; did you mean ratio?",
    ),
    _upstream(
        "key of an upstream",
        f"dialect: openai, base_url: '{_URL}', apikey: x",
        "apikey: unknown key; did you mean api_key?",
    ),
    _model(
        "key of a deployment",
        "deployments: [{upstream: a, wieght: 2}]",
        "deployments[0].wieght: unknown key; did you mean weight?",
    ),
    _section(
        "earlier name",
        "defaults: {answer_later: {when: auto}}",
        "defaults.answer_later: unknown key; it is called deferred now, and in it when is mode",
    ),
)
TYPES = (
    _section(
        "text instead of a port",
        "server: {port: http}",
        "server.port: must be a port: a whole number from 0 to 65535; 0 takes a free port",
    ),
    _section(
        "number instead of text", "server: {host: 1}", "server.host: must be text, not a number; put it in quotes"
    ),
    _section(
        "text instead of a boolean",
        "defaults: {retry: {immediate_first: maybe}}",
        "defaults.retry.immediate_first: must be true or false, not text",
    ),
    _section(
        "text instead of a whole number",
        "server: {max_connections: many}",
        "server.max_connections: must be a whole number, not text",
    ),
    _section("number that is too small", "server: {max_connections: 0}", "server.max_connections: must be at least 1"),
    _section(
        "mapping instead of a list",
        "server: {client_keys: {app: key}}",
        "server.client_keys: must be a list, not a mapping",
    ),
    _section(
        "text instead of a mapping", "defaults: {timeout: 5s}", "defaults.timeout: must be a mapping of keys, not text"
    ),
    _section("section without content", "server:", "server: must be a mapping of keys, not nothing"),
    _upstream("unknown dialect", f"dialect: opena, base_url: '{_URL}'", "dialect: must be 'openai' or 'anthropic'"),
    _section(
        "unknown choice",
        "defaults: {stream: {recover: always}}",
        "defaults.stream.recover: must be off, auto, continue or restart",
    ),
    _section(
        "number of attempts as text",
        "defaults: {retry: {max_attempts: three}}",
        "defaults.retry.max_attempts: not a count: 'three'; write a whole number of at least 1",
    ),
    _section(
        "no attempts",
        "defaults: {retry: {max_attempts: 0}}",
        "defaults.retry.max_attempts: not a count: 0; write a whole number of at least 1",
    ),
)
UNITS = (
    _section(
        "duration without unit",
        "defaults: {timeout: {total: 60}}",
        f"defaults.timeout.total: not a duration: 60; {_DURATION}",
    ),
    _section(
        "duration in days",
        "defaults: {timeout: {total: 1d}}",
        f"defaults.timeout.total: not a duration: '1d'; {_DURATION}",
    ),
    _section(
        "duration in two units",
        "defaults: {timeout: {idle: 1m30s}}",
        f"defaults.timeout.idle: not a duration: '1m30s'; {_DURATION}",
    ),
    _section("duration of nothing", "server: {drain: 0s}", "server.drain: a duration must be longer than 0: '0s'"),
    _section("size in lower case", "server: {max_body: 64mb}", f"server.max_body: not a size: '64mb'; {_SIZE}"),
    _section("size with a fraction", "server: {max_body: 1.5MiB}", f"server.max_body: not a size: '1.5MiB'; {_SIZE}"),
    _section(
        "percentage",
        "defaults: {retry: {budget: {ratio: 20%}}}",
        "defaults.retry.budget.ratio: not a share: '20%'; write a number from 0 to 1",
    ),
    _section(
        "share above 1",
        "defaults: {retry: {jitter: 30}}",
        "defaults.retry.jitter: not a jitter: 30; write 0.3, full, equal or decorrelated",
    ),
)
VARIABLES = (
    _upstream(
        "variable that is not set",
        f"dialect: openai, base_url: '{_URL}', api_key: '${{NO_SUCH_KEY}}'",
        "api_key: the environment variable NO_SUCH_KEY is not set; set it, or allow that: ${NO_SUCH_KEY:-}",
        in_schema=False,
    ),
    _upstream(
        "variable without braces",
        f"dialect: openai, base_url: '{_URL}', api_key: $KEY",
        "api_key: a variable is written ${NAME} or ${NAME:-default}; a dollar sign is $$",
    ),
    _section(
        "variable as a key",
        "server: {'${PORT}': 80}",
        "server.${PORT}: variables are only supported in values, not in keys",
    ),
)
VALUES = (
    _upstream("no base_url", "dialect: openai", "base_url: is missing"),
    _upstream(
        "base_url without scheme",
        "dialect: openai, base_url: a.example/v1",
        "base_url: must be a URL such as https://api.example.com/v1",
    ),
    _upstream(
        "/v1 with anthropic",
        "dialect: anthropic, base_url: 'https://a.example/v1'",
        "base_url: remove /v1: with dialect anthropic it is part of each call's path",
    ),
    _upstream(
        "two sources of a key",
        f"dialect: openai, base_url: '{_URL}', api_key: x, api_key_file: /key",
        "api_key_file: conflicts with api_key: set only one of api_key, api_key_file and api_keys",
    ),
    _upstream(
        "key beside a cloud's credentials",
        f"dialect: openai, base_url: '{_URL}', api_key: x, auth: google",
        "auth: google conflicts with api_key: remove api_key, since the credentials come from the cloud",
    ),
    _upstream(
        "signature without a region",
        f"dialect: openai, base_url: '{_URL}', auth: aws",
        "auth: aws needs aws.region: the host of base_url does not show the region",
        in_schema=False,
    ),
    _upstream(
        "signature without a service",
        f"dialect: openai, base_url: '{_URL}', auth: aws, aws: {{region: us-east-1}}",
        "auth: aws needs aws.service: the host of base_url does not show the service",
        in_schema=False,
    ),
    Mistake(
        "settings of a cloud that is not used",
        f"upstreams:\n  a: {{dialect: openai, base_url: '{_URL}', entra: {{scope: x}}}}\n{MODELS}",
        "2: upstreams.a: has settings in `entra`, which need `auth: entra`",
        in_schema=True,
    ),
    _upstream(
        "tokens from an address without TLS",
        f"dialect: openai, base_url: '{_URL}', auth: entra, entra: {{authority: 'http://a.example'}}",
        "entra.authority: must be a URL that begins with https://",
        in_schema=False,
    ),
    _upstream(
        "parameter without a name",
        f"dialect: openai, base_url: '{_URL}', query: {{'': x}}",
        "query: must have names, and printable characters only",
        in_schema=False,
    ),
    Mistake(
        "name of an upstream",
        f"upstreams:\n  a/b: {{dialect: openai, base_url: '{_URL}'}}\n" + MODELS.replace(": a}", ": a/b}"),
        "2: upstreams.a/b: a name has 1 to 64 letters, digits, dots and dashes",
        in_schema=True,
    ),
    Mistake("no models", UPSTREAMS, "1: models: must have at least one entry", in_schema=True),
    _model("no deployments", "deployments: []", "deployments: must not be empty"),
    _model(
        "unknown upstream",
        "deployments: [{upstream: aa}]",
        "deployments[0].upstream: no upstream has this name; did you mean a?",
        in_schema=False,
    ),
    _model(
        "same deployment twice",
        "deployments: [{upstream: a}, {upstream: a}]",
        "deployments[1]: the same deployment is listed twice",
    ),
    _model(
        "unknown fallback",
        "deployments: [{upstream: a}], fallbacks: [mm]",
        "fallbacks[0]: no model has this name; did you mean m?",
        in_schema=False,
    ),
    _model(
        "fallback to itself",
        "deployments: [{upstream: a}], fallbacks: [m]",
        "fallbacks[0]: falls back to itself",
        in_schema=False,
    ),
    _section(
        "port of the operators",
        "ops: {port: 8080}",
        "ops.port: is the server's port; leave it out to serve both on one port",
        in_schema=False,
    ),
    _section(
        "objects without client keys",
        "server: {isolate_objects: true}",
        "server.isolate_objects: add client_keys: without them objects belong to the callers' own accounts at the "
        "provider",
    ),
    _section(
        "engine without a way to run it",
        "engines: {e: {upstreams: [a]}}",
        "engines.e: needs exactly one of command, docker, podman and systemd",
    ),
    _section(
        "fleet without a token",
        "fleet: {store: 'redis://redis'}",
        "fleet: needs ops.token, the same at all of its gateways: set it to the output of `openssl rand -base64 32`, "
        "through a variable",
        in_schema=False,
    ),
    _section(
        "fleet with a short token",
        "ops: {tokens: [{name: wall, token: wall-wall-wall-wall, role: viewer}, {name: ann, token: hunter2, role: "
        "operator}]}\nfleet: {store: 'redis://redis'}",
        "ops.token: needs at least 16 characters with `fleet`, since names in the store are protected by it: set it to "
        "the output of `openssl rand -base64 32`, through a variable",
    ),
)
ERRORS = (*SYNTAX, *UNKNOWN_KEYS, *TYPES, *UNITS, *VARIABLES, *VALUES)

WARNINGS = (
    _upstream(
        "endpoint in base_url",
        f"dialect: openai, base_url: '{_URL}/chat/completions'",
        "base_url: ends in /chat/completions: remove it, because the gateway appends the path of each call",
    ),
    _upstream(
        "endpoint in base_url of anthropic",
        "dialect: anthropic, base_url: 'https://a.example/v1/messages'",
        "base_url: ends in /v1/messages: remove it, because the gateway appends the path of each call",
    ),
    _upstream(
        "base_url without /v1",
        "dialect: openai, base_url: 'https://a.example'",
        "base_url: has no path: add /v1 to its end, as servers with dialect openai expect it",
        in_schema=False,
    ),
    _section(
        "attempt longer than the call",
        "defaults: {timeout: {attempt: 2m, total: 1m}}",
        "defaults.timeout.attempt: 120s has no effect: the whole call ends after timeout.total, 60s; make attempt "
        "shorter or total longer",
        in_schema=False,
    ),
    _section(
        "idle longer than stall",
        "defaults: {timeout: {idle: 5m}}",
        "defaults.timeout.idle: 300s has no effect: a stream without a useful event ends after timeout.stall, 180s; "
        "make idle shorter or stall longer",
        in_schema=False,
    ),
    _section(
        "no time for a second attempt",
        "defaults: {timeout: {attempt: 50s, total: 1m}}",
        "defaults.timeout.attempt: 50s leaves no time for a retry after an attempt that runs into it: timeout.total "
        "is 60s; make attempt at most half of it, or set retry.max_attempts to 1",
        in_schema=False,
    ),
    _section(
        "too many attempts",
        "defaults: {retry: {max_attempts: 9}, timeout: {total: 20s}}",
        "defaults.retry.max_attempts: 9 attempts do not fit: the waits between them take 48.5s and timeout.total is "
        "20s; set it to 7 or make the waits shorter",
        in_schema=False,
    ),
    Mistake(
        "same deployment under two names",
        UPSTREAMS.replace("b.example", "a.example") + "models:\n  m: {deployments: [{upstream: a}, {upstream: b}]}\n",
        "5: models.m.deployments[1]: is the same deployment as the one of a: b has the same address and key; remove "
        "it, because it fails whenever a fails",
    ),
    Mistake(
        "fallback to the same deployment",
        UPSTREAMS + "models:\n  m: {deployments: [{upstream: a, model: x}], fallbacks: [n]}\n"
        "  n: {deployments: [{upstream: a, model: x}]}\n",
        "5: models.m.fallbacks[0]: can never help: n has no deployment that m does not have; choose a model with "
        "another upstream or another model name",
    ),
    Mistake(
        "public address without client keys",
        UPSTREAMS.replace('/v1"}', '/v1", api_key: "${A_KEY}"}', 1) + MODELS + "server: {host: 0.0.0.0}\n",
        "6: server.host: 0.0.0.0 is reachable from other machines and there are no server.client_keys: any client can "
        "use the API key of a; add server.client_keys, or set host to 127.0.0.1",
    ),
    _section(
        "store below a file",
        "ops: {store: f.yaml/state}",
        "ops.store: {folder}/f.yaml is not a folder: choose another path, or remove it; without it nothing survives "
        "a restart",
        in_schema=False,
    ),
    _section(
        "short token",
        "ops: {token: hunter2}",
        "ops.token: has fewer than 16 characters and can be guessed: use `openssl rand -base64 32`",
    ),
)
