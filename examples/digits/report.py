"""What a training run says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import frozen
from torch import nn

from examples.digits.evaluate import CHAIN, Acceptance, Accuracy

__all__ = ["Cost", "Report"]


@frozen
class Cost:
    """What a trained model takes: its ``parameters``, the bytes of its files, and the seconds of its training."""

    parameters: int
    num_bytes: int
    seconds: float

    @classmethod
    def of(cls, model: nn.Module, directory: Path, seconds: float) -> Cost:
        """The cost of ``model``, whose files are in ``directory``."""
        num_bytes = sum(file.stat().st_size for file in directory.iterdir())
        return cls(sum(parameter.numel() for parameter in model.parameters()), num_bytes, seconds)


@frozen
class Report:
    """Results on held-out digits (and on ``trained`` ones, to compare), sizes and times."""

    accuracy: Accuracy
    trained_accuracy: Accuracy
    exact: float
    with_image: Acceptance
    two_images: Acceptance
    without_image: Acceptance
    target: Cost
    draft: Cost
    device: str
    settings: Sequence[str]

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, to be printed below each other."""
        chain = f"acceptance length, chain of {CHAIN}"
        return [
            (f"digits read right, of {self.accuracy.num_digits} held out", f"{self.accuracy.digits:.2%}"),
            (f"rows read right, of {self.accuracy.num_rows} held out", f"{self.accuracy.rows:.2%}"),
            (
                f"digits read right, of {self.trained_accuracy.num_digits} trained on",
                f"{self.trained_accuracy.digits:.2%}",
            ),
            ("answers exact, all questions, digits held out", f"{self.exact:.2%}"),
            (f"{chain}, one image", f"{self.with_image.length:.2f}"),
            (f"{chain}, two images", f"{self.two_images.length:.2f}"),
            (f"{chain}, text only", f"{self.without_image.length:.2f}"),
            ("parameters, target", f"{self.target.parameters:,}"),
            ("parameters, draft", f"{self.draft.parameters:,}"),
            ("bytes, target", f"{self.target.num_bytes:,}"),
            ("bytes, draft", f"{self.draft.num_bytes:,}"),
            ("seconds, target", f"{self.target.seconds:.0f}"),
            ("seconds, draft", f"{self.draft.seconds:.0f}"),
            ("device", self.device),
        ]

    def write(self, path: Path) -> None:
        """Write the table and the settings as Markdown."""
        lines = ["# A LLaVA that reads rows of digits, and its EAGLE-3 head", "", "| | |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in self.rows()]
        lines += ["", *(f"- {setting}" for setting in self.settings), ""]
        path.write_text("\n".join(lines), encoding="utf-8")
