"""Ratios and figures that are to be reached, stated with what was found."""

from __future__ import annotations

from attrs import frozen

__all__ = ["Goal"]


@frozen
class Goal:
    """One figure that is to be reached: at least ``wanted``, or at most where ``at_most``; ``None``: told for information."""

    text: str
    wanted: float | None
    found: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        """Whether it is; always where nothing is wanted."""
        if self.wanted is None:
            return True
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def __str__(self) -> str:
        if self.wanted is None:
            return f"- {self.text}: {self.found:.2f}"
        bound = "at most " if self.at_most else ""
        verdict = "reached" if self.reached else "MISSED"
        return f"- {self.text}: {self.found:.2f}, wanted {bound}{self.wanted:g}: {verdict}"
