"""Several gateways that share what they know of their deployments. Works in the background: no call waits for it, and
without the store each gateway works alone.

member      exchanges with the store, ten times a second
breakers    the breakers: what this gateway publishes of them, and what it concludes from the others
content     what is published, as bytes
"""
