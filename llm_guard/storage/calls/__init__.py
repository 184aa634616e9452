"""Stored calls: the data and the interface (store); sqlite_store, with schema, statements and bodies: in SQLite.
process_lock shows whether the process that runs a call is alive."""
