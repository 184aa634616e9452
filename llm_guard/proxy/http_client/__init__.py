"""The HTTP client: connections to upstreams.

connection_pool    how each origin is reached, and the connections to it
authorized_origin  adds an upstream's parameters and its cloud's credentials to requests
connection         one connection, and the exchange on it: a request and its response
http1              writes requests and parses responses
forward_proxy      through an HTTP proxy, by aiohttp
errors             errors of the connection to an upstream
interfaces         what a caller provides: callbacks of a request, and the receiver of an upgraded connection's bytes
"""
