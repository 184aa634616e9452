"""Sends less where that makes fewer requests fail.

adaptive_throttle   tries a lower rate; rate_trial: whether it helps; observation_window: results within a stretch of
                    time
release_spreading   spreads the calls that return after a Retry-After
gcra                the algorithm of all rates
"""
