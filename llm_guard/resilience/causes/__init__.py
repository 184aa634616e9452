"""Evidence of why calls are refused or delayed: the last errors of providers, and the calls that it has cost."""
