"""The admin API: what operators see and change. No call waits for it; it reads the rest through snapshots.

pages        requests, responses and endpoints
guard        authentication; credentials: tokens, cookies, login codes; penalty: a delay for each wrong token
login_pages  a browser's session cookie; login_command: prints a login link; operator_token: the generated token;
             command_token: finds it for commands
site         routes a request to its endpoint
openapi      the API description
side         builds all parts
watch        calls the parts' `look` four times a second
journal      the event log; transitions: breakers' state changes; events: server-sent events and WebSocket
metrics      /metrics
history      the last quarter of an hour; health: health of deployments; overview: one snapshot of everything
pauses       lets the event loop run during long scans
alerts       fires and resolves alerts; webhooks: sends them
calls        recent calls as JSON and in a terminal (explain_command, waterfall); foresight: dry run of a call
log_levels   log levels at run time; traces: OpenTelemetry spans
controls     overrides of breakers and deployments: forces, holds; limits: budgets and capacity; config_pages: config
changes      carries out a change, writes the audit trail (trail), publishes an event
dashboard    the browser's page
views        schemas of models and deployments; lasting_views: schemas of cache, stored calls, engines and probes
"""
