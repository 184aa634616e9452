"""What outlives a call, and the process. Nothing here is waited for on a call's way.

folder      where it is kept
database    a SQLite file that several gateways share: opened, locked, moved aside; with
              errors, reserve (room on a full disk) and worker (a thread for what blocks)
token_file  the operator's token, where the config has none; used_codes: login codes that were used
audit       what operators have changed
cache       answers kept for a while: the nouns, and the store in memory; sqlite_cache with cache_file: in SQLite
owners      which client key has made which of a provider's objects
kept        calls that are kept: the nouns, and what a store of them must do
kept_calls  that store, in SQLite; with kept_rows (its form), kept_bodies and sealing (encryption);
              runner_lock shows whether the process that runs one is alive
"""
