"""Reference backends: graph runners and attention."""
