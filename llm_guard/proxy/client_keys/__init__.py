"""Limits of what a client key may use and see. `proxy.caller_identity` checks the key.

quotas            the limits of client keys; output_counter: counts the output of a stream for them
screening         applies the filters for client keys to calls and responses
object_isolation  objects of a provider are visible only to the key that created them; object_ownership: their index
model_list        lists of models contain only what the key may use
response_tap      extracts events from streams while they are relayed
"""
