"""The gateway on a virtual clock: an hour of calls in seconds, with the same figures on every machine.

Everything below HTTP is real, from `Handler.serve` to `Upstreams.open`: routes compiled from YAML, admission, breakers,
learned rates, retries, time limits, the classification of errors and the relay of streams. Only the sockets on both
sides and the clock are replaced.

loop      an event loop with virtual time, which jumps to the next timer
provider  a scripted provider in place of the HTTP client
answers   successful responses and errors in both dialects, as bytes
clients   open-loop arrivals, and the outcome of each call
world     a gateway between the two, run to its end
"""
