"""The way of one call. Its files stand in the order in which a call meets them.

listener      connections from clients: how many, and for how long
client_connection  one of them: framing, requests in their order
request       a request's head, checked, and its body as it comes
reply         what the client gets: an answer, or one that is broken off
server        admit, receive, identify
refusals      the gateway's own words
waiting       a client that waits is told so
model_field   finds the model in a request, and renames it
headers       which headers travel, and which do not
attempt_loop  attempt, classify, decide: until one deployment answers well
way           who is asked next, now or after a wait
entrance      who lets a call in: not resting, not failing, with room
race          an attempt: one exchange, or two at once
settle        an attempt's end: what it holds goes back, what it showed is noted
upstream      one exchange with one deployment, within its limits
connections   HTTP to upstreams; its errors become failure kinds
opening       an answer, read until it is known to be good
stream_view   what is seen of a stream, and what may be passed on
relay         after commit: copies bytes, watches
recovery      a stream that goes on where another has died
tunnel        a WebSocket after its upgrade: bytes both ways
record        the end that always runs: metrics and one log line
"""
