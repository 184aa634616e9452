"""The HTTP client: connections to upstreams.

connection_pool  how each origin is reached; origin_pool: the connections to one origin
authorized_origin  adds an upstream's parameters and its cloud's credentials to requests
connection       one connection: writes with request_writer, reads with response_parser
exchange         one request and its response
forward_proxy    through an HTTP proxy, by aiohttp
errors           errors of the connection to an upstream
interfaces       what a caller provides: callbacks of a request, and the receiver of an upgraded connection's bytes
"""
