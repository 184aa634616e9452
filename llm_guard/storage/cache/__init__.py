"""Cached responses: the data and the store in memory (response_store); sqlite_cache with sqlite_cache_file: in
SQLite."""
