"""Client connections. The only package that serves HTTP/1.1 to clients.

listener         client connections: their number, and the time limits of each
binding          binds the listener to its address
tls_handshake    a connection until its TLS handshake is done
connection       one client connection: the order of its requests, and a deadline for each step
request_parser   parses bytes into requests
request          the head of a request, checked, and its body as it arrives
response_writer  the response to a client: framing, and aborting one that has begun
error_responses  the gateway's own responses: errors, and calls that are deferred
"""
