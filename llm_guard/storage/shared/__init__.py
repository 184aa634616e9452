"""What the gateways of a fleet exchange through a store: each publishes a content, reads those of the others, and takes
leases. Never awaited by a call.

exchange_store   the interface, and an exchange's request and result
memory_store     a store for gateways in one process
redis_store      a store on Redis or Valkey
"""
