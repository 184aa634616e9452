"""Requests, responses and endpoints.

endpoint        the types of an endpoint, a group of endpoints, a request and a response
router          the list of all groups: routes a request to its endpoint, passes on reloads
auth            authentication; credentials: tokens, cookies, login codes; penalty: a delay for each wrong token
operator_token  the generated token
openapi         the API description; schema_docs: texts of its fields
websocket       WebSocket framing
cooperative     lets the event loop run during long scans
"""
