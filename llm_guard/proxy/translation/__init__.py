"""Serves calls by deployments that have another dialect. `dialects.translation` translates; imported when needed.

interfaces  what attempts and responses see of a translation
call        one call: which deployments can serve it, and its request for each
attempt     one attempt: its request and its response
decoder     the stream of one attempt
"""
