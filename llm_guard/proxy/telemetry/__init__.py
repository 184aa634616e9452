"""Records of every call.

recorder           the end of every call: counters, log line, permits
access_log         the log line, and those of the last calls; waterfall: the same as a picture in text
trace_propagation  a call's place in a trace
"""
