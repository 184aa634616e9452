"""Responses without an upstream call of their own.

cache_stage       deferred calls and the response cache, before an upstream is tried; else a single flight
single_flight     one request for identical calls
broadcast_buffer  the response of a flight, for all who wait for it
waiter            one waiting call
"""
