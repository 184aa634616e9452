"""Which responses are cached (cacheability), under which key, and how long they stay fresh (freshness)."""
