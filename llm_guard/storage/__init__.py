"""Storage for what outlives a call or the process. No call waits for it, except for a bounded read of the cache.

state_dir         where it is kept; shared_file: files that several gateways share
sqlite_file       a SQLite file that several gateways share: opened, locked, moved aside; with errors and disk_reserve
                  (room on a full disk)
snapshot_file     the operator state of one gateway
audit_log         what operators have changed
token_file        the operator's token, where the config has none; used_login_codes: login codes that were used
owners_file       which client key has made which of a provider's objects; redis_owners: the same on a server
cache/            cached responses
calls/            deferred calls and dead letters
"""
