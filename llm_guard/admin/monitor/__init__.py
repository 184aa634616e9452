"""Calls the parts' `look` four times a second (monitor), and computes rates of the last minutes (rates)."""
