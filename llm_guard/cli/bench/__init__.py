"""`llm-guard bench`: calls at a fixed rate to a gateway or provider, or to two at the same time.

command   the command: progress, table, JSON, exit code
payloads  request bodies from a file
page      the results as a page with a dot for each call
picture   the same as a PNG picture, with matplotlib
"""
