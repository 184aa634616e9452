"""The event log (event_log), breakers' state changes (breaker_transitions), those of probes, engines and degraded modes
(state_changes), and the streams of all: server-sent events (stream) and WebSocket (websocket_stream), with a queue for
each subscriber."""
