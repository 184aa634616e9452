"""Decides whether, where and when a failed call is tried again.

decision   after a failure: retry, fall back, or give up
backoff    waits between attempts
limits     retry budgets, and which requests may be sent twice; retry_yield: what a budget's retries bring
hedging    when a second exchange is started beside a slow one; key_selection: which key is next
"""
