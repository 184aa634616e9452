"""Serves calls by deployments that have another dialect, or take its requests in the form of a cloud.
`dialects.translation` and `dialects.forms` write both; imported when needed.

interfaces      what attempts and responses see of a translation
call            one call: which deployments can serve it, and its request for each
attempt         one translated attempt: its request and its response
formed_attempt  one attempt in the form of a cloud, translated or not
framed_origin   streams in Amazon's frames
decoder         the stream of one translated attempt
"""
