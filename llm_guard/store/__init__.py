"""What outlives a call, and the process. Nothing here is waited for on a call's way.

folder  where it is kept
audit   what operators have changed
"""
