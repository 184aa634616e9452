"""The event log (event_log), breakers' state changes (breaker_transitions), those of probes and engines
(upstream_events), and the streams of all: server-sent events (stream) and WebSocket (websocket_stream), with a queue
for each subscriber."""
