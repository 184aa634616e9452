"""Delivery of webhooks.

queue       all webhooks of alerts, and their life cycle
delivery    delivery to one webhook: queue, retries and statistics; rate_limit: its rate
client      HTTP requests; resolver: names of hosts
payloads    bodies of alerts in each format
signature   signs a request
"""
