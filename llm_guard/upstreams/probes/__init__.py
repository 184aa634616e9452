"""Probes of upstreams.

targets  what is probed, and the result of a probe
probe    one probe
prober   runs probes, and acts on their results
"""
