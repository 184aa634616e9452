"""Reads a request body within bounds, and the fields that the gateway needs of it.

interfaces         a body that is in a file, or still arriving
size_limit         the largest body that is accepted
incoming_body      a body that takes many reads: received as a whole, or sent on while it arrives; forwarding: sends it
reader             such a body, scanned as it passes: json_scanner, input_counter, multipart_scanner, content_encoding
body_buffer        its bytes in memory or in a file; spooled_body: once it is complete
spool              the files of all bodies, and their common size limit
model_field        finds and renames the model; fields: the fields that are read
duplicate_models   detects bodies that name several models
"""
