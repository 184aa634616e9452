"""The data plane: the path of one call through the proxy.

handler              the whole order of one call: admits, receives and identifies it; settings: the config that it uses
call                 the data of one call
http_server/         client connections: parses requests, writes responses
request_body/        reads a request body, and the fields that the gateway needs of it
client_keys/         what a client key may use and see
identification       copies fields of a call's body to it, and finds its route
own_endpoints        what the gateway answers itself: model_catalog lists the models; the state of deferred calls
status_endpoint      the state of the models for clients, once or as a stream; model_status: finds it
coalescing/          responses without an own upstream call: from the cache, or from an identical call under way
cache/               the response cache
attempts/            attempts, classifies and decides until one deployment responds well
http_client/         connections to upstreams
streams/             decodes a stream, and resumes one that has died
translation/         request and response of an upstream that has another dialect than the client
response/            relays the response to the client; fallback responses, keep-alives, WebSocket tunnels
telemetry/           the end of every call: counters, log line, trace
headers              which headers are forwarded, and which identify a caller
caller_identity      the caller of a call: its client key, and as breakers and queues see it
degraded_mode        degraded mode of routes and of the gateway
dry_run              what would happen to a call now
ports                the interface to the store of deferred calls and dead letters
gc_pause             parses large bodies while the garbage collector is paused
"""
