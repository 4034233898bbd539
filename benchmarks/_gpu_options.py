"""What every GPU benchmark can be told, and where its reports go."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from attrs import frozen

from benchmarks._backends import attention_names
from benchmarks._report import Report, environment

__all__ = ["GpuOptions", "parser", "read"]


@frozen
class GpuOptions:
    """``attention``: the backend's name. ``out_dir``: where reports grow. ``markdown``: where complete ones are put."""

    device: torch.device
    quick: bool
    repeats: int
    attention: str
    out_dir: Path | None
    markdown: Path | None

    def report(self, name: str) -> Report:
        """A report that begins with where it is measured, and is ``name.md`` in the folder, where there is one, as it grows."""
        report = Report(name, None if self.out_dir is None else self.out_dir / f"{name}.md")
        report.add(environment(self.device))
        return report

    def finish(self, report: Report) -> None:
        """Put the complete ``report`` between its markers in the document, where one was given."""
        if self.markdown is not None:
            report.write(self.markdown)


def parser(name: str, description: str | None, repeats: int = 3) -> argparse.ArgumentParser:
    """A parser of the options that all have."""
    made = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    made.add_argument("out_dir", type=Path, nargs="?", help=f"folder in which to leave {name}.md")
    made.add_argument("--device", default="cuda", help="where to run; cpu walks through the same code")
    made.add_argument("--attention", choices=("triton", "sdpa"), help="backend (default: triton where it runs)")
    made.add_argument("--repeats", type=int, default=repeats, help="timed repetitions; medians are given")
    made.add_argument("--quick", action="store_true", help="fewer settings and prompts, one repetition")
    made.add_argument("--markdown", type=Path, help="write the report there (between its markers, if there are any)")
    return made


def read(parsed: argparse.Namespace) -> GpuOptions | None:
    """The options, PyTorch set to one thread; ``None``, said on the screen, where the device or the backend is not there."""
    device = torch.device(str(parsed.device))
    if device.type == "cuda" and not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false; --device cpu --quick walks through the same code")
        return None
    names = attention_names(device)
    asked: str | None = parsed.attention
    if asked is not None and asked not in names:
        print(f"attention backend {asked} does not run on {device} here; there is {', '.join(names)}")
        return None
    torch.set_num_threads(1)
    quick = bool(parsed.quick)
    out_dir: Path | None = parsed.out_dir
    markdown: Path | None = parsed.markdown
    repeats = 1 if quick else int(parsed.repeats)
    return GpuOptions(device, quick, repeats, asked or names[0], out_dir, markdown)
