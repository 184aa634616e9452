"""The path of one call through the proxy. Modules are listed in the order in which a call passes them.

listener             client connections: their number, and the time limits of each
listening            binds the listener to its address
tls_handshake        a connection until its TLS handshake is done
client_connection    one client connection: the order of its requests, and a deadline for each step
request_parser       parses bytes into requests
request              the head of a request, checked, and its body as it arrives
reply                the response to a client: framing, and aborting one that has begun
server               the handler: admits, receives and identifies a call; serving is the config that it uses
refusals, answers    the gateway's own error responses: their texts, and how they are written
waiting              keep-alives for a client that waits
first_resort         responses without an upstream: deferred calls and the response cache (answer_cache, replay); else a
                     single flight for identical calls: flight (its task), tape (its broadcast buffer, a recording),
                     following (one waiting call)
body_limit           the largest body that is accepted
arrival              a body that takes many reads: received as a whole, or sent on while it arrives
body                 such a body: scanned as it passes (json_scan, input_count, form_scan, coding), kept in memory or in
                     a file (body_store), and once complete a stored_body
spool                the files of all bodies, and their common size limit
model_field, asked   the fields read from a body: finds and renames the model; uncollected reads large bodies while the
                     garbage collector is paused
headers              which headers are forwarded, and which are not
attempt_loop         attempts, classifies and decides until one deployment answers well
way                  selects the deployment that is tried next, now or after a wait
entrance             admission: no cooldown, no open breaker, room in the capacity
race                 an attempt: one exchange, or two with hedging
settle               the end of an attempt: releases its lease, records what it showed
upstream             one exchange with one deployment, within its time limits; sending sends a body that still arrives
connections          the HTTP client: how each origin is reached
origin, proxied      the connection pool of an origin; through an HTTP proxy, aiohttp's
upstream_connection  one of these connections: writes request_head, reads with answer_reader, and yields an
                     upstream_exchange
opening              reads a response until it is known to be good
unary                a response that is not streamed: read whole and checked against its schema (answer_shape,
                     answer_items), or relayed as it arrives; media_head recognises what is not audio
clients, doubled     the client key of a call, and whether it may use this path and this model, which it names once
screening            what else a client key may use and see: isolation of objects (ownership, response_tap), model_list
output_count         counts the output of a stream, for client keys with a token limit
stream_view          decodes a stream, and decides what may be passed on
relay                copies the response to the client after commit
recovery             resumes a stream that has died on another deployment
last_resort          fallback responses after a failure: stale from the cache, deferred (202), static (sooner when
                     degraded), and the dead letter
keeping              the interface to the store of deferred calls and dead letters
tunnel               a WebSocket after its upgrade: bytes both ways
record               the end of every call: counters and one log line (call_line), kept for a while (timelines)
tracing              a call's place in a trace
foresight            a dry run: what would happen to a call now
"""
