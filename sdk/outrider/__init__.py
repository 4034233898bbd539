"""Outrider: exact speculative decoding behind typed seams."""
