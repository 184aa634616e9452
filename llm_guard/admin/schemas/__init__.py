"""Schemas of the admin API's responses that several endpoints share: deployments (models), their past (history), what
outlives a call (subsystems), stored calls (dead_letters), and restrictions with their incidents."""
