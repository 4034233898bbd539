"""Adapters: target and draft models."""
