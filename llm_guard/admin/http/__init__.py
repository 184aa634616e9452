"""Requests, responses and endpoints.

endpoint        the types of an endpoint, a request and a response
router          routes a request to its endpoint
auth            authentication; credentials: tokens, cookies, login codes; penalty: a delay for each wrong token
operator_token  the generated token
openapi         the API description; schema_docs: texts of its fields
websocket       WebSocket framing
cooperative     lets the event loop run during long scans
"""
