"""Pure decisions. Stateful policies take `now`, stateless ones a uniform draw `u`; none reads a clock, draws, logs,
locks or raises for an expected case. Settings stand beside the policy they rule.
"""
