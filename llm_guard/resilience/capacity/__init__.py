"""How many calls a deployment gets at a time, how fast, and which call is next.

gate              admits calls to a deployment within its limit, fixed or learned (adaptive_limit); settings: of both
wait_queue        calls that wait; fair_queue: their order by caller; slot_usage: what each caller has used
pacing            the pace of calls and its holds; caller_pacing, throttled_callers: callers with a pace of their own
learned_rate      the rate by 429s: throttle_statistics, rate_growth, quota_probes, quota_evidence
header_rate       the rate by headers; rate_limit_headers: what responses say of it
arrival_rate      how fast calls arrive
response_memory   memory taken by responses
"""
