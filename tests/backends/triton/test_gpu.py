"""The Triton backend on a card: the whole suite, real sizes, CUDA graphs that outgrow their capture, and engine runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from attrs import evolve
from torch import Tensor

from outrider import ChainBuilder, EngineOptions, NgramBuilder, SpeculativeModel, TreeBuilder, registry
from outrider.checkpoint import Checkpoint
from outrider.interfaces import AttnBackend, BoundDraft, DrafterBuilder, LoadOptions, Target
from outrider.kv import slots_of
from outrider.types import AttentionSpec
from outrider_backends.sdpa import SdpaBackend
from outrider_backends.triton import create
from tests.backends.attention_cases import Kind, build, build_pair, layers_for
from tests.backends.attention_checks import check_capture, check_independence, check_refresh, check_values
from tests.backends.triton.scenes import Scene, expected, make_scene, pick, rows_of_request, run, with_padding
from tests.cases_data import greedy_cases

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")
OFF = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 5e-3}
LLAMA = AttentionSpec(32, 8, 128, 128**-0.5)

every_kind = pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.value)
dtypes = pytest.mark.parametrize("dtype", OFF, ids=str)


def some_layers(backend: AttnBackend) -> tuple[AttentionSpec, ...]:
    """Plain, of one kv head, windowed, and with everything: each combination is a kernel that has to be compiled."""
    layers = layers_for(backend.capabilities, CUDA)
    return layers[0], layers[3], layers[5], layers[-1]


SPECS = {
    "llama": LLAMA,
    "windowed": evolve(LLAMA, window=512),
    "capped": AttentionSpec(8, 4, 256, 256**-0.5, soft_cap=20.0),
    "narrow": AttentionSpec(28, 4, 80, 80**-0.5),
    "alone": AttentionSpec(8, 8, 64, 64**-0.5),
}
specs = pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *(("llama", dtype) for dtype in OFF),
        ("windowed", torch.bfloat16),
        ("capped", torch.bfloat16),
        ("capped", torch.float32),
        ("narrow", torch.bfloat16),
        ("narrow", torch.float32),
        ("alone", torch.float16),
    ],
)


@pytest.fixture(scope="module")
def backend() -> AttnBackend:
    return create()


@every_kind
@dtypes
def test_suite(backend: AttnBackend, kind: Kind, dtype: torch.dtype) -> None:
    for seed in range(3):
        check_values(backend, build(kind, some_layers(backend), 16, dtype, CUDA, seed))


@pytest.mark.parametrize("kind", [Kind.DECODE, Kind.TREE, Kind.CHUNKED_PREFILL], ids=lambda kind: kind.value)
@pytest.mark.parametrize("page_size", [1, 7, 64])
def test_page_sizes(backend: AttnBackend, kind: Kind, page_size: int) -> None:
    check_values(backend, build(kind, some_layers(backend)[-1:], page_size, torch.float32, CUDA, 3))


@every_kind
def test_suite_neighbours_refresh_and_capture(backend: AttnBackend, kind: Kind) -> None:
    layers = some_layers(backend)
    check_independence(backend, build(kind, layers, 16, torch.float32, CUDA, 4))
    check_refresh(backend, *build_pair(kind, layers, CUDA))
    check_capture(backend, *build_pair(kind, layers, CUDA))


@specs
@pytest.mark.parametrize("queries", [1, 6, 40])
def test_real_sizes(backend: AttnBackend, name: str, queries: int, dtype: torch.dtype) -> None:
    for tree in (False, True) if queries > 1 else (False,):
        lengths = (0, 5, 128, 700, 2048, 4096)
        scene = make_scene(SPECS[name], lengths, (queries,) * len(lengths), dtype=dtype, device=CUDA, tree=tree)
        assert (run(backend, scene) - expected(scene)).abs().max() <= OFF[dtype]


@specs
def test_ragged_prefill(backend: AttnBackend, name: str, dtype: torch.dtype) -> None:
    scene = make_scene(SPECS[name], (0, 0, 300, 0, 1000, 17), (511, 64, 200, 3, 1, 130), dtype=dtype, device=CUDA)
    assert (run(backend, scene) - expected(scene)).abs().max() <= OFF[dtype]


@dtypes
def test_sinks(backend: AttnBackend, dtype: torch.dtype) -> None:
    spec = evolve(LLAMA, sinks=torch.randn(LLAMA.num_heads, device=CUDA))
    scene = make_scene(spec, (3, 900), (5, 5), dtype=dtype, device=CUDA, tree=True)
    assert (run(backend, scene) - expected(scene)).abs().max() <= OFF[dtype]


SCENES: dict[str, Callable[[torch.dtype], Scene]] = {
    "decode": lambda dtype: make_scene(LLAMA, (3, 200, 4000, 1025), (1, 1, 1, 1), dtype=dtype, device=CUDA),
    "chain": lambda dtype: make_scene(LLAMA, (0, 200, 4000, 1025), (6, 6, 6, 6), dtype=dtype, device=CUDA),
    "tree": lambda dtype: make_scene(LLAMA, (0, 200, 3000), (16, 16, 16), dtype=dtype, device=CUDA, tree=True),
    "ragged": lambda dtype: make_scene(LLAMA, (0, 900, 7, 2000, 0), (300, 5, 1, 70, 2), dtype=dtype, device=CUDA),
}


@dtypes
@pytest.mark.parametrize("name", SCENES)
def test_neighbours_bounds_padding_and_repetition_change_no_bit(
    backend: AttnBackend, name: str, dtype: torch.dtype
) -> None:
    scene = SCENES[name](dtype)
    whole = run(backend, scene)
    for _ in range(20):
        assert torch.equal(run(backend, scene), whole)
    for row in range(len(scene.batch.query_lens)):
        mine = whole[rows_of_request(scene, row)]
        assert torch.equal(run(backend, pick(scene, [row])), mine)
        assert torch.equal(run(backend, pick(scene, [row], max_length=100_000, width=6_250)), mine)
    backwards = list(reversed(range(len(scene.batch.query_lens))))
    turned = run(backend, pick(scene, backwards))
    assert torch.equal(turned, torch.cat([whole[rows_of_request(scene, row)] for row in backwards]))
    if scene.batch.uniform_queries is not None:
        padded = run(backend, with_padding(scene))
        assert torch.equal(padded[scene.batch.query_lens[0] :], whole)
        assert not padded[: scene.batch.query_lens[0]].any()


@dtypes
@pytest.mark.parametrize("queries", [1, 6])
def test_one_graph_serves_every_length(backend: AttnBackend, queries: int, dtype: torch.dtype) -> None:
    """Captured on short sequences with a bound of the whole context, replayed as they grow by leaps."""
    steps = (2, 60, 130, 900, 3000)
    scene = make_scene(LLAMA, (1, 5, 9), (queries,) * 3, dtype=dtype, device=CUDA, room=4096)
    # Histories of every length: verified slots, which no request has reached yet.
    for storage in (scene.kv.keys(0), scene.kv.values(0)):
        storage[32:] = torch.randn_like(storage[32:])
    batch = scene.batch
    plan = backend.plan(batch, [LLAMA], scene.kv)

    def body() -> Tensor:
        plan.refresh()
        return plan.attend(0, scene.q, scene.k, scene.v)

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch leaves Stream.__new__ unannotated
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        body()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = body()
    for step in steps:
        batch.prefix_lens.add_(step)
        places = batch.prefix_lens[:, None] + torch.arange(queries, device=CUDA)
        batch.slots.copy_(slots_of(batch.page_table, places, scene.kv.page_size).reshape(-1))
        for new in (scene.q, scene.k, scene.v):
            new.normal_()
        graph.replay()
        assert (captured - expected(scene)).abs().max() <= OFF[dtype]
        now = evolve(scene, batch=evolve(batch, max_length=int(batch.prefix_lens.max()) + queries))
        assert torch.equal(run(backend, now), captured)


def test_nothing_waits_for_the_device(backend: AttnBackend) -> None:
    """Planning included, of a ragged batch whose prefixes only the device knows."""
    scene = make_scene(LLAMA, (0, 900, 7), (100, 5, 1), device=CUDA)
    run(backend, scene)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        run(backend, scene)
    finally:
        torch.cuda.set_sync_debug_mode("default")


CASES = greedy_cases()
PROMPTS = [case.prompt for case in CASES]
BUILDERS: dict[str, Callable[[BoundDraft], DrafterBuilder | None]] = {
    "off": lambda _: None,
    "chain": lambda draft: ChainBuilder(draft, 5),
    "tree": lambda draft: TreeBuilder(draft, 4, 5, 15),
    "ngram": lambda _: NgramBuilder(4),
}


@pytest.fixture(scope="module")
def pair() -> tuple[Target, BoundDraft]:
    options = LoadOptions(torch.device("cuda", torch.cuda.current_device()), torch.float32)
    files = registry.pair("tiny")
    target = registry.load_target(Checkpoint(files.target), options)
    return target, registry.load_draft(Checkpoint(files.drafts[0]), options).bind(target)


@pytest.mark.parametrize("runner", ["eager", "cuda-graph"])
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", BUILDERS)
def test_engines_write_the_text_of_sdpa(pair: tuple[Target, BoundDraft], name: str, batch: int, runner: str) -> None:
    target, draft = pair
    texts: list[list[tuple[int, ...]]] = []
    for attention in (create(), SdpaBackend()):
        made = SpeculativeModel(
            target,
            BUILDERS[name](draft),
            attention=attention,
            runner=lambda: registry.runner(runner),
            options=EngineOptions(max_batch_size=batch),
        )
        done = made.generate_batch(PROMPTS, max_new_tokens=64).completions
        texts.append([each.token_ids for each in done])
    assert texts[0] == texts[1] == [case.token_ids for case in CASES]
