"""Reads a request body within bounds, and the fields that the gateway needs of it.

interfaces    a body that is in a file, or still arriving
reader        a body that takes many reads: its limit, received as a whole, or sent on while it arrives (forwarding)
json_scanner  scans such a body as it passes; also input_counter, multipart_scanner, content_encoding
body_buffer   its bytes in memory or in a file; spooled_body: once it is complete
spool         the files of all bodies, and their common size limit
model_field   finds and renames the model, and detects bodies that name several; fields: the fields that are read
"""
