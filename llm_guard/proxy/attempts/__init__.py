"""Attempts, classifies and decides until one deployment responds well.

attempt_loop         the loop
candidate_selection  selects the deployment that is tried next, now or after a wait
admission            no cooldown, no open breaker, room in the capacity
hedging              an attempt: one exchange, or two with hedging
upstream_attempt     one exchange with one deployment, within its time limits
first_response       reads a response until it is known to be good
release              the end of an attempt: releases its lease, records what it showed
"""
