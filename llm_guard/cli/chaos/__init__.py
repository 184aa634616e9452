"""`llm-guard chaos`: plays outages against a config, with stand-ins for its upstreams.

command    the command: progress, table, JSON, page, exit code
scenes     what is played: each trouble at each upstream, and what clients see of it
stand_ins  a config with its upstreams replaced
advice     which key would help
page       the results as a page
"""
