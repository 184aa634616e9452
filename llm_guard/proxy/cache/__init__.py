"""The response cache of the data path; `storage.cache` stores the responses.

response_cache   which calls may use the cache, which response is theirs, and which responses are stored
cached_response  sends a cached response
response_buffer  records a response
"""
