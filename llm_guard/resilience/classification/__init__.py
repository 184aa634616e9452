"""The meaning of errors: from a response or an error of the connection to a failure kind.

classify             evidence -> failure
error_body           the error in a body; in_band_errors: an error within a success or a stream
rules                how the tables are matched: error_codes, phrase_match, topic_match
retry_after          the wait that a response requests; unsatisfiable_limit: no wait helps
invalid_response     a success status with something else than the endpoint's response
lenient_json         JSON that is cut off or malformed
vocabulary/          the tables
"""
