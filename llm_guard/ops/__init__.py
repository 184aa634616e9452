"""The operator's side, never on a call's way. It sees the rest through snapshots.

pages      what is asked and answered
guard      who may
site       finds the page
side       all parts, put together
watch      looks around, four times a second
journal    what has happened
metrics    /metrics
views      what is seen of models and deployments
"""
