"""Verifiers: which drafted tokens are accepted."""
