"""The way of one call. Its files stand in the order in which a call meets them.

listener      HTTP from clients
server        admit, receive, identify
refusals      the gateway's own words
reply         what the client gets: an answer, or one that is broken off
waiting       a client that waits is told so
model_field   finds the model in a request, and renames it
headers       which headers travel, and which do not
attempt_loop  attempt, classify, decide: until one deployment answers well
way           who is asked next, now or after a wait
entrance      who lets a call in: not resting, not failing, with room
race          an attempt: one exchange, or two at once
upstream      one exchange with one deployment, within its limits
connections   HTTP to upstreams; its errors become failure kinds
opening       an answer, read until it is known to be good
stream_view   what is seen of a stream, and what may be passed on
relay         after commit: copies bytes, watches
recovery      a stream that goes on where another has died
tunnel        a WebSocket after its upgrade: bytes both ways
record        the end that always runs: permits, metrics and one log line
"""
