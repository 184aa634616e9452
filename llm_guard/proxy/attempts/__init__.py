"""Attempts, classifies and decides until one deployment responds well.

attempt_loop         the loop
candidate_selection  selects the deployment that is tried next, now or after a wait
admission            no cooldown, no open breaker, room in the capacity; and the release after an attempt
upstream_attempt     an attempt: one exchange with a deployment, within its time limits, or two with hedging
first_response       reads a response until it is known to be good
"""
