"""How many calls a deployment gets at a time, how fast, and which call is next.

gate               admits calls to a deployment; settings: of its capacity
concurrency_limit  the limit, fixed or learned (adaptive_limit)
wait_queue         calls that wait; fair_queue: their order by caller; slot_usage: what each caller has used
pacing             the pace of calls; caller_pacing, throttled_callers: callers with a pace of their own
pacer              the rate: learned_rate, header_rate; rate_limit_headers: what responses say of it
learned_rate       throttle_statistics, response_rows, rate_growth, rate_reduction; quota_probes, quota_evidence
retry_after_hold   a wait that a provider requests of all calls
arrival_rate       how fast calls arrive
response_memory    memory taken by responses
"""
