"""From an upstream's response to the client's.

unary              a response that is not streamed: read whole and validated, or relayed as it arrives
validation         whether a JSON response matches its endpoint's schema
json_completeness  whether large JSON that is relayed in pieces is complete
media_signatures   recognises bodies that are not audio
content_decoding   content codings of responses
json_rewrite       decodes and replaces whole JSON responses, for filters
delivery           copies responses to the client after commit, one after the other if streams die
keepalive          keep-alives for a client that waits
fallback_response  after a failure: a stale response, a deferred call, a static response, or the error
websocket_tunnel   a WebSocket after its upgrade: bytes both ways
"""
