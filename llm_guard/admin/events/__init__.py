"""The event log (event_log), breakers' state changes (breaker_transitions), and the streams of both: server-sent events
(stream) and WebSocket (websocket_stream), with a queue for each subscriber."""
