"""Storage for what outlives a call or the process. Its writes happen outside the calls' critical path.

folder      the state folder
database    a SQLite file shared by several gateways: opening, locking, moving aside; with
            errors, reserve (spare room on a full disk) and worker (a thread for blocking work)
token_file  the operator's token, where the config has none; used_codes: login codes that were used
audit       changes made by operators
cache       the response cache: types and the in-memory store; sqlite_cache with cache_file: in SQLite
owners      which client key created which of a provider's objects
kept        deferred calls and dead letters: types, and the protocol of a store
kept_calls  that store in SQLite; with kept_rows (schema), kept_bodies and sealing (encryption);
            runner_lock shows whether the process that runs a call is alive
"""
