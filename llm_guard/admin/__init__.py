"""The control plane: what operators see and change. No call waits for it; it reads the rest through snapshots.

control_plane  builds all parts; context: what they are given
http/          requests, responses and endpoints, authentication, the API description
api/           the endpoints; schemas/: what they return
events/        the event log, and its streams
metrics/       /metrics
alerting/      fires and resolves alerts
overrides/     overrides of breakers and deployments
restrictions/  what refuses or delays calls now
incidents/     restrictions and alerts, grouped by cause
persistence/   operator state over a restart
audit/         carries out changes, and writes the audit trail
monitor/       looks at the parts four times a second, and computes rates
tracing/       OpenTelemetry spans
dashboard/     the browser's page
"""
