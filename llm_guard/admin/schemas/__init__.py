"""Schemas of the admin API's responses that several endpoints share: deployments (models), what outlives a call
(subsystems), stored calls (dead_letters), and restrictions."""
