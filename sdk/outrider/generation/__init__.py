"""Generation of text: loading, settings, completions."""
