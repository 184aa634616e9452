"""Cached responses.

response_store      the types, the protocols of a store and of its entries, and the store in memory
blocking_cache      a store whose entries are read by blocking calls, used from the event loop
sqlite_cache_file   entries in a SQLite file
redis_cache         entries on a Redis server
"""
