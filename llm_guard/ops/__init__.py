"""The operator's side, never on a call's way. It sees the rest through snapshots.

pages      what is asked and answered
guard      which requests are let in; credentials: what a token, a cookie and a code prove; penalty: what a guess costs
login      login_pages: a browser's cookie; login_command: a link for it. operator_token: where the config has none;
           command_token: where commands find it
site       finds the page
openapi    what all pages are
side       all parts, put together
watch      looks around, four times a second
journal    what has happened; transitions: of breakers; events: who hears of it, over a socket too
metrics    /metrics
history    how it went lately; health: how deployments are; overview: both and more, at one moment
pauses     in what takes long to be looked at
alerts     what is wrong, once; webhooks: who is told
calls      why a call failed: as JSON, and in a terminal (explain_command, waterfall); foresight: what one would meet
log_levels which lines are written; traces: calls as spans, for a collector
controls   breakers and deployments, acted on: forces, holds; limits: budgets and capacity; config_pages: the config
changes    the way of every change: done, written down (trail), told
dashboard  all of this on one page, for a browser
views      what is seen of models and deployments; lasting_views: of what outlives a call
"""
