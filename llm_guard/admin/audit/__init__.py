"""Carries out changes (changes), and writes the audit trail (writer)."""
