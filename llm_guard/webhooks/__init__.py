"""Delivery of webhooks.

delivery       the engine that all webhooks use: attempts, retries, giving up, stop; rate_limit: its rate
client         HTTP requests; resolver: names of hosts
request        one request and its headers; signature: signs it
queue          all webhooks of alerts, and their life cycle
alert_webhook  one webhook of alerts: queue in memory and statistics
notice_sharing which gateway of a fleet sends the notices about a cause
payloads       bodies of alerts in each format

Webhooks of finished calls are in `deferred.completion_webhooks`.
"""
