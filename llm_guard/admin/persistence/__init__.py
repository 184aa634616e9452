"""Operator state that survives a restart (operator_state), and when it is saved (state_saver)."""
