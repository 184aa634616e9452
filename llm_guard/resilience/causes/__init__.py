"""Evidence of why calls are refused or delayed: the last errors of providers, series of refusals, and common causes."""
