"""Several worker processes that are one gateway together (`server.workers`). Loaded only if there are several.

A worker is a whole gateway that listens on the same port as the others, and shares with them what gateways of a fleet
share (`llm_guard.fleet`). Their parent starts and watches them, serves the admin API, and has their store. No call
waits for the parent.

parent        the parent's process: its parts, start and end
supervisor    starts workers, restarts those that end or hang, stops all
child         one worker, as the parent sees it
restarts      how long to wait before a restart
reloads       all workers use a new config, or none does
admin_api     what the parent itself serves, and which worker gets a request
relay         passes a request on to a worker
metrics_page  /metrics: the sums
merging       adds up the metrics of workers
worker        the process of a worker
agreement     the worker's side of reloads
channel_store the worker's side of the store
snapshot      the metrics of a worker, as a message
messages      what parent and workers tell each other
channel       carries messages over a socket
"""
