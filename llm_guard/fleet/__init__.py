"""Several gateways that share what they know of their deployments. Works in the background: no call waits for it, and
without the store each gateway works alone.

member      exchanges with the store, ten times a second
names       digests in place of names, which only gateways of the fleet can compute
breakers    the breakers: what this gateway publishes of them, and what it concludes from the others
slots       concurrency limits, which hold for all gateways together
client_limits
            the other limits of client keys, which do so, too
paces       rates that providers limit calls to, learned together
retry_floors
            free retries, which all gateways have together
notices     which gateway sends the notices of an alert that all of them have
overrides   overrides by operators, which hold at all gateways
content     what is published, as bytes
"""
