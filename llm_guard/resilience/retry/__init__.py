"""Decides whether, where and when a failed call is tried again.

decision       after a failure: retry, fall back, or give up
candidates     the deployments of a call, and which of them are left
backoff        waits between attempts; deadline: time limits of a call
budget         retry budgets; failure_rate, retry_yield: what they count
idempotency    which requests may be sent twice; key_selection: which key is next
hedging        when a second exchange is started beside a slow one
"""
