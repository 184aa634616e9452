"""The way of one call. Its files stand in the order in which a call meets them.

listener             connections from clients: how many, and for how long
listening            how it comes to its address
tls_handshake        a connection before it is encrypted
client_connection    one of them: requests in their order, the end of each step
request_parser       their bytes as requests
request              a request's head, checked, and its body as it comes
reply                what the client gets: an answer, or one that is broken off
server               admit, receive, identify; serving is the config by which it does
refusals, answers    the gateway's own words, and how they are written
waiting              a client that waits is told so
first_resort         an answer before anybody is asked, by answer_cache and replay; else one request for all who ask the
                     same: flight (its task), tape (what has come of it, a recording), following (each who gets it)
body_limit           how large a body may be
arrival              a body that takes many reads: received as a whole, or its call begins before all of it has arrived
body                 such a body: looked at as it passes (json_scan, input_count, form_scan, coding), kept in memory or
                     in a file (body_store), and once all of it is there (stored_body)
spool                the files of all bodies, bounded together
model_field, asked   what a body asks for: its model found, and renamed; a large one is read uncollected
headers              which headers travel, and which do not
attempt_loop         attempt, classify, decide: until one deployment answers well
way                  who is asked next, now or after a wait
entrance             who lets a call in: not resting, not failing, with room
race                 an attempt: one exchange, or two at once
settle               an attempt's end: what it holds goes back, what it showed is noted
upstream             one exchange with one deployment, within its limits; sending is a body that still arrives
connections          HTTP to upstreams: which origin is reached how
origin, proxied      an origin's connections: made, kept, counted; behind an HTTP proxy by aiohttp
upstream_connection  one of them: request_head out, answer_reader in; what comes of it is an upstream_exchange
opening              an answer, read until it is known to be good
unary                one that is not streamed: read whole and judged by its shape (answer_shape, answer_items), or
                     relayed as it comes; media_head recognises what is no audio
clients, doubled     whose key a call has, and whether it may call this path and this model, which it names once
screening            what its key may use and see besides: isolation of objects (ownership, response_tap), model_list
output_count         the output of a stream, for a key whose tokens are limited
stream_view          what is seen of a stream, and what may be passed on
relay                after commit: copies bytes, watches
recovery             a stream that goes on where another has died
last_resort          nobody has answered: an answer from before, a promise, a lesser one (when soon: degraded), a letter
keeping              who keeps calls beyond their clients, as an interface
tunnel               a WebSocket after its upgrade: bytes both ways
record               the end that always runs: counters, and one line (call_line), kept for a while (timelines)
tracing              a call's place in a trace
foresight            what would become of a call that came now
"""
