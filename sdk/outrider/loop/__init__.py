"""The decode loop."""
