"""The embedded pair at the cost of an 8B model: the small weights inside big ones, with the same text and acceptance.

``python -m benchmarks.widen --check --device cuda`` from the checkout; see ``--help``. Nothing is downloaded and nothing
is trained: every float32 logit of the widened pair is the small pair's but for rounding. Why that is so:

Residual stream
    The small stream x stands in the first h of H columns and the rest is 0; every matrix that writes to the stream has
    zero rows, and every matrix that reads it zero columns, for what was added.
RMS norms
    With S the sum of x², the small norm is x·w / sqrt(S/h + eps). Over H columns the mean square is S/H, so
    ``eps' = eps·h/H`` and ``w' = w·sqrt(h/H)`` give x·w·sqrt(h/H) / sqrt((h/H)·(S/h + eps)), which is the same.
Heads
    Small query head a of kv head c becomes wide query head c·G + a mod g, with g and G the small and wide number of query
    heads for each kv head, so it still reads kv head c. Heads that were added are 0 and nothing reads them.
Rope
    Rotary pair i of a head is its dimensions (i, i + d/2) and turns by theta^(-2i/d) for each position. In a head of D = r·d
    dimensions pair r·i turns by theta^(-2ri/D), the same; so pair i goes to dimensions (r·i, r·i + D/2). The pairs between
    are 0, and turning 0 gives 0.
Softmax
    Scores are scaled by 1/sqrt(D) where they were by 1/sqrt(d), so queries are multiplied by sqrt(D/d).
Feed-forward
    What was added has zero weights on both sides: silu(0)·0 = 0 through zero columns.
Layers
    The real layers are spread evenly. Layers between have zero ``o_proj`` and ``down_proj``, add 0 to the stream, and so
    leave it bit for bit; their other weights are those of the real layer before them, and cost what those cost. Boundary
    b before real layer b holds the small stream at b, and the draft's taps are moved there and named in its config.
Head
    Rows that were added are the mean of the small ones, so their logit is the mean of the small logits: never above the
    largest, and equal only where all are equal. A tied head becomes a tensor of its own. So greedy text and the acceptance of
    chains are the pair's. Two things are not: at a temperature the many padding ids together have some probability, and a
    draft's log-probabilities, which rank the nodes of a dynamic tree, are lowered by theirs, by more at one node than at
    another (`Differences` tells how much there is). Text is the target's own in either case.
Draft
    EAGLE-3's ``fc`` reads the taps side by side, H columns each, and its attention cat[norm(embed), norm(hidden)], 2H
    columns; each part is placed as above. Added draft ids are mapped to target ids of their own, to padding where possible.

In half precision sqrt(D/d) is not always a power of two, so rounding the queries' weights anew changes the text now and
then; norms lose nothing where H/h is a power of four.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike is left bare
from torch import Tensor

from benchmarks._bandwidth import copy_bandwidth, weight_bytes_per_round
from benchmarks._cases import chain_lengths, greedy_cases
from benchmarks._race import device_wait
from benchmarks._report import Report, Table, environment
from benchmarks._widen_check import chain, compare, texts_and_lengths
from benchmarks._widen_files import WideCheckpoint, draft_checkpoint, target_checkpoint
from benchmarks._widen_spec import LLAMA_8B, SmallPair, WidenSpec
from outrider.checkpoint import Checkpoint, TensorInfo
from outrider.errors import ConfigurationError
from outrider.interfaces import BoundDraft, LoadOptions, ModelPair, Target
from outrider_adapters.eagle import eagle3_loader
from outrider_adapters.llama import loader
from outrider_adapters.pairs import tiny

__all__ = ["LLAMA_8B", "PRESETS", "SMALL", "WidenSpec", "build", "load", "write"]

SMALL = WidenSpec(
    name="small",
    hidden=512,
    layers=10,
    q_heads=8,
    kv_heads=4,
    head_dim=128,
    ffn=1024,
    vocab=5000,
    draft_vocab=2000,
    draft_ffn=900,
)
"""Every part is widened, and a CPU runs it in seconds."""

PRESETS: Mapping[str, WidenSpec] = {LLAMA_8B.name: LLAMA_8B, SMALL.name: SMALL}

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
_CPU = torch.device("cpu")
_SHARD_BYTES = 4 << 30
_OTHER_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
_CHAIN = 5
_LIMIT = 1e-3
"""Largest difference of two float32 logits (they range over some 30) that rounding may explain."""


def checkpoints(
    spec: WidenSpec, dtype: torch.dtype, device: torch.device, pair: ModelPair | None = None
) -> tuple[WideCheckpoint, WideCheckpoint]:
    """The widened target and EAGLE-3 draft of ``pair`` (the embedded one), tensors made on ``device`` when they are read.

    Raises:
        ConfigurationError: ``spec`` cannot hold the pair, with every reason.
        CheckpointError: the pair holds tensors that have no place in a wider one.
    """
    directories = tiny() if pair is None else pair
    small = SmallPair.read(Checkpoint(directories.target), Checkpoint(directories.drafts[0]))
    spec.check(small)
    return target_checkpoint(spec, small, dtype, device), draft_checkpoint(spec, small, dtype, device)


def build(
    spec: WidenSpec, device: torch.device, dtype: torch.dtype, pair: ModelPair | None = None
) -> tuple[Target, BoundDraft]:
    """The widened target and its draft, bound, made on ``device`` without a file.

    The tensors go through the loaders as those of a directory would, one at a time, so that the peak of memory is the
    model and twice its largest tensor. Raises as `checkpoints`.
    """
    return load(*checkpoints(spec, dtype, device, pair), LoadOptions(device, dtype))


def load(target: Checkpoint, draft: Checkpoint, options: LoadOptions) -> tuple[Target, BoundDraft]:
    """The target, and the EAGLE-3 draft bound to it."""
    loaded = loader().load(target, options)
    return loaded, eagle3_loader().load(draft, options).bind(loaded)


def write(spec: WidenSpec, directory: Path, dtype: torch.dtype, pair: ModelPair | None = None) -> ModelPair:
    """Write ``directory/target`` and ``directory/eagle3`` in Hugging Face's layout; the same tensors that `build` makes.

    One shard of the weights is in memory at a time. Raises as `checkpoints`, and ConfigurationError where either directory
    is there already.
    """
    places = (directory / "target", directory / "eagle3")
    if taken := [str(place) for place in places if place.exists()]:
        raise ConfigurationError(f"{' and '.join(taken)} exist already; remove them or name another directory")
    for checkpoint, place in zip(checkpoints(spec, dtype, _CPU, pair), places, strict=True):
        place.mkdir(parents=True)
        _write_one(checkpoint, place)
    return ModelPair(places[0], (places[1],))


def _write_one(checkpoint: WideCheckpoint, directory: Path) -> None:
    (directory / "config.json").write_text(
        json.dumps(dict(checkpoint.config.values), indent=2) + "\n", encoding="utf-8"
    )
    for name in _OTHER_FILES:
        if (checkpoint.directory / name).is_file():
            shutil.copyfile(checkpoint.directory / name, directory / name)
    shards = _shards(checkpoint)
    if len(shards) == 1:
        save_file(dict(checkpoint.files.tensors()), directory / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map: dict[str, str] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        shard: dict[str, Tensor] = {name: checkpoint.files.read(name) for name in names}
        save_file(shard, directory / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {"total_size": sum(map(_bytes, checkpoint.tensors.values()))}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def _shards(checkpoint: WideCheckpoint) -> list[list[str]]:
    """Names of the tensors of each file, none of more than `_SHARD_BYTES` unless a single tensor is."""
    shards: list[list[str]] = [[]]
    room = _SHARD_BYTES
    for name, info in checkpoint.tensors.items():
        size = _bytes(info)
        if size > room and shards[-1]:
            shards.append([])
            room = _SHARD_BYTES
        shards[-1].append(name)
        room -= size
    return shards


def _bytes(info: TensorInfo) -> int:
    return math.prod(info.shape) * info.dtype.itemsize


def check(spec: WidenSpec, device: torch.device, num_prompts: int = 8) -> tuple[Table, bool]:
    """A table of what the float32 pair widened to ``spec`` has in common with the small one, and whether it is everything."""
    cases = greedy_cases()[:num_prompts]
    small = load(Checkpoint(tiny().target), Checkpoint(tiny().drafts[0]), LoadOptions(_CPU, torch.float32))
    began = time.perf_counter()
    wide = build(spec, device, torch.float32)
    device_wait(device)()
    seconds = time.perf_counter() - began
    found = compare(small, wide, [case.prompt + case.continuation for case in cases])
    lengths = chain_lengths(f"eagle3-chain{_CHAIN}")
    decoded = texts_and_lengths(wide[0], cases, [("plain", None, ()), chain(wide[1], _CHAIN, lengths)])
    rows: list[tuple[str, str, str, bool]] = [
        ("largest difference of the target's logits", f"{found.logits:.1e}", f"{_LIMIT:.0e}", found.logits <= _LIMIT),
        ("of the draft's", f"{found.draft_logits:.1e}", f"{_LIMIT:.0e}", found.draft_logits <= _LIMIT),
        ("least the best token is above padding", f"{found.margin:.1f}", "above 0", found.margin > 0),
        ("in the draft", f"{found.draft_margin:.1f}", "above 0", found.draft_margin > 0),
        ("largest number in added columns", f"{found.stray:g}", "0", found.stray == 0),
    ]
    for one in decoded:
        rows.append(
            (f"{one.name}: wrong texts of {len(cases)}", str(one.num_wrong_texts), "0", not one.num_wrong_texts)
        )
        if one.rounds:
            shown = f"acceptance {one.acceptance:.2f}, other rounds than the pair's"
            rows.append((f"{one.name}: {shown}", str(one.num_wrong_rounds), "0", not one.num_wrong_rounds))
    for what, share in (("target", found.padding_share), ("draft", found.draft_padding_share)):
        rows.append((f"largest probability of padding, {what}, temperature 1", f"{share:.1%}", "any", True))
    table = Table(
        (f"{spec.name}, float32, built in {seconds:.1f} s", "found", "allowed", ""),
        tuple((*row[:3], "ok" if row[3] else "WRONG") for row in rows),
    )
    return table, all(row[3] for row in rows)


def floors(spec: WidenSpec, device: torch.device, dtype: torch.dtype) -> Table:
    """The least time of rounds in ``dtype``, by the bandwidth measured on ``device`` and the weights that rounds read."""
    target, draft = checkpoints(spec, dtype, _CPU)
    bandwidth = copy_bandwidth(device, 4 << 30 if device.type == "cuda" else 256 << 20)
    rows: list[tuple[str, ...]] = []
    for length in (0, 1, 3, _CHAIN):
        read = weight_bytes_per_round(target, draft, length)
        gigabytes = (f"{size / 1e9:.2f}" for size in (read.target, read.draft))
        rows.append((f"chain {length}" if length else "drafting off", *gigabytes, f"{read.floor_ms(bandwidth):.2f}"))
    return Table((f"copies move {bandwidth / 1e12:.2f} TB/s", "target GB", "draft GB", "floor ms/round"), tuple(rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Check or write a widened pair, as asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.widen", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--spec", choices=sorted(PRESETS), default=LLAMA_8B.name, help="sizes of the widened pair")
    parser.add_argument("--check", action="store_true", help="compare the float32 pair on --device with the small one")
    parser.add_argument("--floor", action="store_true", help="measure bandwidth, give the floor of bfloat16 rounds")
    parser.add_argument("--device", default="cuda", help="where to check")
    parser.add_argument("--prompts", type=int, default=8, help="how many of the cases are checked")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write DIR/target and DIR/eagle3")
    parser.add_argument("--dtype", choices=sorted(_DTYPES), default="bfloat16", help="of the files written")
    options = parser.parse_args(arguments)
    wants_check, wants_floor = bool(options.check), bool(options.floor)
    directory: Path | None = options.write
    spec, device = PRESETS[str(options.spec)], torch.device(str(options.device))
    if not (wants_check or wants_floor or directory is not None):
        parser.error("nothing to do: give --check, --floor or --write DIR")
    if (wants_check or wants_floor) and device.type == "cuda" and not torch.cuda.is_available():
        print(
            "no CUDA device: torch.cuda.is_available() is false; --device cpu --spec small walks through the same code"
        )
        return 1
    torch.set_num_threads(1)
    right = True
    if directory is not None:
        pair = write(spec, directory, _DTYPES[str(options.dtype)])
        print(f"wrote {pair.target} and {pair.drafts[0]}\n")
    report = Report("widen")
    if wants_check or wants_floor:
        report.add(environment(device))
    if wants_check:
        table, right = check(spec, device, int(options.prompts))
        report.add(table)
    if wants_floor:
        report.add(floors(spec, device, torch.bfloat16))
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
