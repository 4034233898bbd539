"""What attention costs on a CUDA card: sdpa and triton side by side, per layer, inside a CUDA graph and eagerly.

``python -m benchmarks.gpu_attention [OUT_DIR]`` from the checkout, with sdk, backends and adapters on the path. Every layer
writes its new keys and values and attends, as in a round of a model of Llama-3.1-8B's heads; refreshing the plan, once for
all layers, is counted in. Outputs are compared before anything is timed; the exit status tells.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from attrs import frozen
from torch import Tensor

from benchmarks._progress import tell
from benchmarks._report import Report, Table, environment
from outrider import registry
from outrider.interfaces import AttnBackend, AttnPlan
from outrider.kv import PagedKVCache, slots_of
from outrider.types import AttentionSpec, AttnBatch

__all__ = ["CASES", "Case", "Timing", "run_once", "timing_table"]

LAYERS = 16
PAGE_SIZE = 16
SPEC = AttentionSpec(32, 8, 128, 128**-0.5)
OFF = {torch.bfloat16: 0.07, torch.float32: 1e-4}
"""How far the backends' outputs may lie apart: two units in the last place of the largest."""


@frozen
class Case:
    """``batch`` requests of ``queries`` new tokens on ``length`` cached ones; or a prefill of prompts of ``ragged`` tokens."""

    name: str
    batch: int
    queries: int
    length: int
    tree: bool = False
    ragged: tuple[int, ...] | None = None
    dtype: torch.dtype = torch.bfloat16
    bound: int | None = None
    """What the host knows of the length, where that is more: a graph that was captured for longer sequences."""


def _cases() -> tuple[Case, ...]:
    made: list[Case] = []
    for batch in (1, 8):
        for length in (128, 512, 1024, 4096):
            made.append(Case("decode", batch, 1, length))
            made.append(Case("chain 5", batch, 6, length))
            made.append(Case("tree 15", batch, 16, length, tree=True))
        made.append(Case("decode", batch, 1, 128, bound=8192))
        made.append(Case("chain 5", batch, 6, 128, bound=8192))
    made.append(Case("decode", 1, 1, 512, dtype=torch.float32))
    made += [
        Case("prefill", 8, 0, 0, ragged=(64,) * 8),
        Case("prefill", 8, 0, 0, ragged=(20, 40, 60, 80, 100, 200, 300, 224)),
        Case("prefill", 8, 0, 0, ragged=(150, 206, 256, 256, 256, 256, 412, 256)),
        Case("prefill", 1, 0, 0, ragged=(2048,)),
    ]
    return tuple(made)


CASES = _cases()


@frozen
class Timing:
    """Microseconds per layer of one case on one backend; ``graph`` is ``None`` for a prompt, which is never captured."""

    graph: float | None
    eager: float
    plan: float


@frozen(eq=False)
class _Work:
    """A case on the card."""

    batch: AttnBatch
    kv: PagedKVCache
    q: Tensor
    k: Tensor
    v: Tensor

    def layers(self, plan: AttnPlan) -> Tensor:
        """All layers of one pass; the last one's output."""
        plan.refresh()
        out = self.q
        for layer in range(LAYERS):
            out = plan.attend(layer, self.q, self.k, self.v)
        return out


def timing_table(rows: Sequence[tuple[Case, dict[str, Timing]]]) -> Table:
    """One row per case: microseconds per layer of each backend in a graph and eagerly, and of planning a batch once."""
    lines: list[tuple[str, ...]] = []
    for case, timings in rows:
        sdpa, triton = timings["sdpa"], timings["triton"]
        captured = sdpa.graph is not None and triton.graph is not None
        lines.append(
            (
                case.name,
                str(case.dtype).removeprefix("torch."),
                str(case.batch),
                "/".join(map(str, case.ragged)) if case.ragged else str(case.queries),
                str(case.length) if case.bound is None else f"{case.length} of {case.bound}",
                _number(sdpa.graph),
                _number(triton.graph),
                f"{sdpa.graph / triton.graph:.1f}" if captured and sdpa.graph and triton.graph else "-",
                _number(sdpa.eager),
                _number(triton.eager),
                f"{sdpa.eager / triton.eager:.1f}",
                _number(sdpa.plan),
                _number(triton.plan),
            )
        )
    columns = ("case", "dtype", "batch", "queries", "cached", "sdpa, graph", "triton, graph", "×")
    return Table(
        (*columns, "sdpa, eager", "triton, eager", "×", "sdpa, plan", "triton, plan"), tuple(lines), frozenset({0, 1})
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, measure, print, and write the report where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_attention", description=__doc__)
    parser.add_argument("out_dir", type=Path, nargs="?", help="folder in which to leave gpu_attention.md")
    parser.add_argument("--repeats", type=int, default=9, help="timed repetitions; medians are given")
    options = parser.parse_args(arguments)
    out_dir: Path | None = options.out_dir
    if not torch.cuda.is_available():
        print("no CUDA device: torch.cuda.is_available() is false")
        return 1
    device = torch.device("cuda", torch.cuda.current_device())
    backends = {name: registry.attention(name) for name in ("sdpa", "triton")}
    report = Report("gpu_attention", None if out_dir is None else out_dir / "gpu_attention.md")
    report.add(environment(device))
    report.add(
        f"Microseconds per layer ({SPEC.num_heads} query heads, {SPEC.num_kv_heads} kv heads, head dim {SPEC.head_dim}, "
        f'pages of {PAGE_SIZE}; {LAYERS} layers with one refresh), medians. "128 of 8192": planned for any length up to 8192. '
        '"Plan": microseconds of the host for one plan, shared by all layers.'
    )
    rows: list[tuple[Case, dict[str, Timing]]] = []
    faults: list[str] = []
    for case in CASES:
        work = _work(case, device)
        timings: dict[str, Timing] = {}
        outputs: list[Tensor] = []
        for name, backend in backends.items():
            plan = backend.plan(work.batch, [SPEC] * LAYERS, work.kv)
            outputs.append(work.layers(plan).float())
            timings[name] = _time(work, backend, plan, int(options.repeats))
        error = float((outputs[0] - outputs[1]).abs().max())
        if not error <= OFF[case.dtype]:
            faults.append(f"{case}: the backends differ by {error:.2e}")
        rows.append((case, timings))
        tell(str(case))
        # Shown once all is there.
        report.put("table", timing_table(rows), show=case is CASES[-1])
    report.add("\n".join(["**The backends differ:**", *faults]) if faults else "Outputs of both agree in every case.")
    return int(bool(faults))


def run_once(case: Case, backend: AttnBackend, device: torch.device) -> Tensor:
    """The output of the last of all layers, so that every kernel of ``case`` is compiled."""
    work = _work(case, device)
    return work.layers(backend.plan(work.batch, [SPEC] * LAYERS, work.kv))


def _work(case: Case, device: torch.device) -> _Work:
    counts = case.ragged or (case.queries,) * case.batch
    lengths = [case.length] * case.batch
    most = max(length + count for length, count in zip(lengths, counts, strict=True))
    pages = -(-max(most, case.bound or 0) // PAGE_SIZE)
    order = torch.randperm(case.batch * pages, generator=torch.Generator().manual_seed(0)) + 2
    table = order.view(case.batch, pages).to(device)
    kv = PagedKVCache([SPEC] * LAYERS, case.batch * pages + 2, PAGE_SIZE, case.dtype, device)
    for layer in range(LAYERS):
        kv.keys(layer).normal_()
        kv.values(layer).normal_()
    slots = [
        slots_of(table[row : row + 1], torch.arange(length, length + count, device=device)[None], PAGE_SIZE)[0]
        for row, (length, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    mask = depths = None
    if case.tree:
        # Every node but the root has the node of half its number for a parent.
        one = torch.eye(case.queries, dtype=torch.bool)
        for node in range(1, case.queries):
            one[node] |= one[(node - 1) // 2]
        mask = one.to(device).expand(case.batch, -1, -1).contiguous()
        depths = mask.sum(-1) - 1
    batch = AttnBatch(
        query_lens=tuple(counts),
        prefix_lens=torch.tensor(lengths, device=device),
        page_table=table,
        slots=torch.cat(slots),
        max_length=most if case.bound is None else case.bound,
        host_prefix_lens=tuple(lengths) if case.ragged else None,
        tail_mask=mask,
        query_depths=depths,
        tail_depths=depths,
    )
    heads, kv_heads = SPEC.num_heads, SPEC.num_kv_heads
    fused = torch.randn(sum(counts), heads + 2 * kv_heads, SPEC.head_dim, device=device, dtype=case.dtype)
    return _Work(batch, kv, fused[:, :heads], fused[:, heads : heads + kv_heads], fused[:, heads + kv_heads :])


def _time(work: _Work, backend: AttnBackend, plan: AttnPlan, repeats: int) -> Timing:
    # A prompt's plan is made anew for each batch, and never captured.
    graph = None if work.batch.host_prefix_lens is not None else _graph(work, plan)
    specs = [SPEC] * LAYERS
    return Timing(
        graph=None if graph is None else _device_us(graph.replay, repeats) / LAYERS,
        eager=_wall_us(lambda: work.layers(plan), repeats) / LAYERS,
        plan=_host_us(lambda: backend.plan(work.batch, specs, work.kv), repeats),
    )


def _graph(work: _Work, plan: AttnPlan) -> torch.cuda.CUDAGraph:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves Stream.__new__ unannotated
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work.layers(plan)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work.layers(plan)
    return graph


def _device_us(call: Callable[[], object], repeats: int, inner: int = 10) -> float:
    """Median of device time, with the launches queued ahead."""
    call()
    found: list[float] = []
    for _ in range(repeats):
        start, stop = _event(), _event()
        start.record()
        for _ in range(inner):
            call()
        stop.record()
        stop.synchronize()
        found.append(1e3 * start.elapsed_time(stop) / inner)
    return statistics.median(found)


def _wall_us(call: Callable[[], object], repeats: int) -> float:
    """Median from the first launch until the device is done."""
    call()
    found: list[float] = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(1e6 * (time.perf_counter() - started))
    return statistics.median(found)


def _host_us(call: Callable[[], object], repeats: int) -> float:
    """Median of what the host takes, whatever the device does."""
    call()
    found: list[float] = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        started = time.perf_counter()
        call()
        found.append(1e6 * (time.perf_counter() - started))
    return statistics.median(found)


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves its constructor unannotated


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


if __name__ == "__main__":
    raise SystemExit(main())
