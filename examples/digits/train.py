"""Trains the pair of target and draft; run as ``python -m examples.digits.train OUT_DIR --device cuda``."""

from __future__ import annotations

from pathlib import Path

import click
import torch

from examples.digits.pipeline import run
from examples.digits.settings import full, quick


@click.command()
@click.argument("out_dir", type=click.Path(file_okay=False, path_type=Path))
@click.option("--device", default="cpu", show_default=True, help="Where to train: cpu, cuda, cuda:1.")
@click.option("--quick", "is_quick", is_flag=True, help="A minute on a CPU: everything runs, little is learned.")
@click.option("--minutes-target", type=click.FloatRange(min=0.01), default=2.5, show_default=True)
@click.option("--minutes-draft", type=click.FloatRange(min=0.01), default=1.2, show_default=True)
def main(out_dir: Path, device: str, is_quick: bool, minutes_target: float, minutes_draft: float) -> None:
    """Train a LLaVA that reads rows of digits and an EAGLE-3 head for it, and write both into OUT_DIR."""
    out_dir.mkdir(parents=True, exist_ok=True)
    plan = (quick if is_quick else full)(minutes_target, minutes_draft)
    report = run(out_dir, plan, torch.device(device), lambda text: click.echo(text, err=True))
    width = max(len(name) for name, _ in report.rows())
    for name, value in report.rows():
        click.echo(f"{name:<{width}}  {value}")


if __name__ == "__main__":
    main()
