"""Pure decisions. Stateful policies take `now`, stateless ones a uniform draw `u`; none reads a clock, draws random
numbers, logs, locks or raises for an expected case. Settings are defined beside the policy that they configure.
"""
