"""Streams of events, as the proxy sees them.

decoder  decodes a stream, and decides what may be passed on
resume   continues a stream that has died on another deployment
"""
