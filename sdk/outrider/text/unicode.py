"""Whether text is Unicode that can be encoded."""

from __future__ import annotations

__all__ = ["check_text"]


def check_text(text: str) -> str | None:
    """Why ``text`` is not valid Unicode, in a clause; ``None`` when it is."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        return f"character {error.start} is half of a surrogate pair or a byte that is not UTF-8; give valid Unicode"
    return None
