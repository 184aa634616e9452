"""Storms of errors, of many lengths and at many rates: does the gateway serve again afterwards?

Each cell of the matrix is a run of the whole gateway on a virtual clock (`benchmarks.virtual`).

cells      the cells, and the provider of each
measure    figures of one cell
fallbacks  random errors before a fallback to another model
slow       successful responses that take minutes
run        all measurements, on all processors
report     JSON and page
picture    heat map
"""
