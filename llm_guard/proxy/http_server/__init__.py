"""Client connections. The only package that serves HTTP/1.1 to clients.

connection       client connections: the order of requests, a deadline for each step; the listener: their number
binding          binds the listener to its address
tls_handshake    a connection until its TLS handshake is done
request          parses bytes into requests: the head, checked, and the body as it arrives
response_writer  the response to a client: framing, and aborting one that has begun
error_responses  the gateway's own responses: errors, and calls that are deferred
"""
