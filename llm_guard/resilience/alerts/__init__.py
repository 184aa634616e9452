"""When an alert fires and resolves: the state of one (alert), its rules, silences, and the baseline for trends."""
