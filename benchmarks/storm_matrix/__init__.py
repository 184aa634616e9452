"""Does the gateway come back after a storm of errors, of any length and at any rate?

Each cell of the matrix is a run of the whole gateway on a virtual clock (`benchmarks.virtual`).

cells      what varies, and the provider of one cell
measure    what is measured in one cell
fallbacks  random errors before a fallback to another model
slow       right answers that take minutes
run        all of it, on all processors
report     JSON, page and picture
"""
