"""Records of every call.

recorder           the end of every call: counters, log line, permits
counters           the counters
access_log         the log line; waterfall: the same as a picture in text
recent_calls       the last calls, kept for a while
trace_propagation  a call's place in a trace
"""
