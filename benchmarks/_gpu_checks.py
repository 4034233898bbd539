"""What must hold on a card before its speed is worth a word: texts, acceptance, seeds, synchronisation, numerics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import torch
import torch.nn.functional as functional
from attrs import frozen
from torch import Tensor

from benchmarks._cases import Case, TokenIds, chain_lengths, greedy_cases, tree_cases
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._pair import Pair, load_pair
from benchmarks._race import Answer, agreement
from outrider import EngineOptions, Request, SamplingParams, build_engine
from outrider.drafting.builders import DrafterBuilder
from outrider.interfaces import Target
from outrider.sampling.noise import exponential_noise, gumbel_noise, noise_bits
from outrider.types import RequestId, StackInputs
from outrider_backends.eager import EagerRunner
from outrider_backends.sdpa import SdpaBackend

__all__ = ["Bench", "Generated", "Outcome", "checks", "differences", "gap_where_they_part", "generate", "run_checks"]

NEAR_TIE = {torch.bfloat16: 0.25, torch.float16: 0.05}
"""How far apart in float32 two logits may be of which half precision takes the lower one (they range over some 30)."""


@frozen
class Outcome:
    """Whether one check passed, and what it found."""

    name: str
    passed: bool
    detail: str


@frozen
class Bench:
    """Where and how thoroughly things are checked."""

    device: torch.device
    quick: bool

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes."""
        return (8,) if self.quick else (1, 3, 8)

    @property
    def page_sizes(self) -> tuple[int, ...]:
        """KV page sizes."""
        return (16,) if self.quick else (1, 16)

    def pair(self, dtype: torch.dtype = torch.float32) -> Pair:
        """The pair on the device, loaded once for each dtype."""
        return _pair_on(self.device, dtype)


@cache
def _pair_on(device: torch.device, dtype: torch.dtype) -> Pair:
    return load_pair(device, dtype)


@frozen
class Generated:
    """Texts of all prompts, with what each round accepted."""

    token_ids: tuple[TokenIds, ...]
    accept_lengths: tuple[TokenIds, ...]


def generate(
    pair: Pair,
    builder: DrafterBuilder | None,
    prompts: Sequence[TokenIds],
    sampling: Sequence[SamplingParams] | None = None,
    *,
    batch: int = 8,
    page_size: int = 16,
) -> Generated:
    """Continue ``prompts``, at most ``batch`` at once, on an engine of their own."""
    options = EngineOptions(max_batch_size=batch, page_size=page_size, max_length=512)
    engine = build_engine(pair.target, builder, attention=SdpaBackend(), runner=EagerRunner(), options=options)
    chosen = [SamplingParams()] * len(prompts) if sampling is None else sampling
    order = [engine.submit(Request(prompt, MAX_NEW_TOKENS, how)) for prompt, how in zip(prompts, chosen, strict=True)]
    token_ids: dict[RequestId, list[int]] = {request: [] for request in order}
    lengths: dict[RequestId, list[int]] = {request: [] for request in order}
    while engine.has_work:
        for emission in engine.step():
            if emission.error is not None:
                raise emission.error
            token_ids[emission.request_id] += emission.token_ids
            if emission.accept_length is not None:
                lengths[emission.request_id].append(emission.accept_length)
    return Generated(
        tuple(tuple(token_ids[request]) for request in order), tuple(tuple(lengths[request]) for request in order)
    )


def check_greedy(bench: Bench) -> str:
    """Text and acceptance equal the cases, whatever drafts, batch and page size."""
    pair, cases = bench.pair(), greedy_cases()
    drafts: list[tuple[str, DrafterBuilder | None, tuple[TokenIds, ...] | None]] = [
        ("off", None, None),
        ("eagle3 chain 5", pair.chain(5), chain_lengths("eagle3-chain5")),
        ("eagle1 chain 4", pair.eagle1_chain(4), chain_lengths("eagle1-chain4")),
        ("static tree", pair.static_tree(), None),
    ]
    for tree in tree_cases():
        name = f"tree {tree.width}x{tree.depth}, {tree.num_tokens} tokens"
        drafts.append((name, pair.tree(tree.width, tree.depth, tree.num_tokens), tree.accept_lengths))
    count = 0
    faults: list[str] = []
    for name, builder, lengths in drafts:
        for batch in bench.batches:
            # One prompt at a time takes longest; four of them tell enough.
            some = cases[:4] if batch == 1 else cases
            for page_size in bench.page_sizes:
                found = generate(pair, builder, [case.prompt for case in some], batch=batch, page_size=page_size)
                where = f"{name}, batch {batch}, pages of {page_size}"
                faults += [f"{where}: {fault}" for fault in differences(found, some, lengths)]
                count += 1
    _none_of(faults)
    return f"{count} settings of draft, batch and page size give the reference's tokens and acceptance lengths"


def check_seeds(bench: Bench) -> str:
    """A seed gives the same tokens with any draft and alone."""
    pair, cases = bench.pair(), greedy_cases()
    prompts = [case.prompt for case in cases]
    settings = [
        SamplingParams(temperature=1.0, seed=11),
        SamplingParams(temperature=0.7, top_p=0.9, seed=12),
        SamplingParams(temperature=1.3, top_k=50, min_p=0.02, seed=13),
        SamplingParams(),
    ]
    sampling = [settings[index % len(settings)] for index in range(len(prompts))]
    plain = generate(pair, None, prompts, sampling)
    drafts: dict[str, DrafterBuilder] = {
        "eagle3 chain 5": pair.chain(5),
        "tree 4x5x15": pair.tree(4, 5, 15),
        "static tree": pair.static_tree(),
        "eagle1 chain 4": pair.eagle1_chain(4),
    }
    faults: list[str] = []
    for name, builder in drafts.items():
        for batch in (8,) if bench.quick else (8, 3):
            drafted = generate(pair, builder, prompts, sampling, batch=batch)
            faults += [
                f"{name}, batch {batch}: prompt {index} differs from plain sampling with the same seed"
                for index, (one, other) in enumerate(zip(drafted.token_ids, plain.token_ids, strict=True))
                if one != other
            ]
    _none_of(faults)
    return f"{len(drafts)} drafts sample the tokens of plain decoding"


def check_half_precision(bench: Bench, dtype: torch.dtype) -> str:
    """Half precision finishes, and a drafted text leaves the plain one only where two tokens are all but equally likely.

    Logits of few bits tie often, and batches of other shapes break ties otherwise; what follows is another text.
    """
    pair, cases = bench.pair(dtype), greedy_cases()
    prompts = [case.prompt for case in cases]
    plain = generate(pair, None, prompts)
    drafts: dict[str, DrafterBuilder] = {"chain 5": pair.chain(5), "tree 4x5x15": pair.tree(4, 5, 15)}
    notes: list[str] = []
    faults: list[str] = []
    for name, found in {
        "plain": plain,
        **{name: generate(pair, made, prompts) for name, made in drafts.items()},
    }.items():
        wanted = [case.continuation for case in cases] if found is plain else plain.token_ids
        of = "float32's" if found is plain else "its own plain"
        rounds = [length for lengths in found.accept_lengths for length in lengths]
        gaps = [0.0]
        for index, (ids, others) in enumerate(zip(found.token_ids, wanted, strict=True)):
            gap = gap_where_they_part(bench.pair().target, prompts[index], ids, others)
            gaps.append(gap)
            if not gap <= NEAR_TIE[dtype]:
                faults.append(f"{name}, prompt {index}: differs from {of} where float32 logits are {gap:.3f} apart")
        share = agreement(Answer(found.token_ids, num_passes=0), wanted)
        notes.append(
            f"{name} {share:.0%} of {of} tokens (parting at most {max(gaps):.3f} apart), acceptance "
            f"{sum(rounds) / len(rounds):.2f}"
        )
    _none_of(faults)
    return "; ".join(notes)


def check_no_synchronisation(bench: Bench) -> str:
    """After a warm-up, launching rounds never makes the host wait for the device."""
    pair, cases = bench.pair(), greedy_cases()
    sampled = [SamplingParams(temperature=0.9, top_p=0.9, top_k=40, seed=index) for index in range(len(cases))]
    rounds = 0
    drafts: dict[str, DrafterBuilder | None] = {
        "off": None,
        "eagle3 chain 5": pair.chain(5),
        "tree 4x5x15": pair.tree(4, 5, 15),
        "static tree": pair.static_tree(),
        "eagle1 chain 4": pair.eagle1_chain(4),
    }
    faults: list[str] = []
    for name, builder in drafts.items():
        for kind, sampling in (("greedy", [SamplingParams()] * len(cases)), ("sampled", sampled)):
            engine = build_engine(pair.target, builder, attention=SdpaBackend(), runner=EagerRunner())
            for case, how in zip(cases, sampling, strict=True):
                engine.submit(Request(case.prompt, MAX_NEW_TOKENS, how))
            engine.admit()
            engine.prefill()
            for _ in range(2):
                engine.run_round()
            engine.read()
            _forbid_synchronisation(bench.device, True)
            try:
                for _ in range(4):
                    engine.run_round()
                    rounds += 1
            except RuntimeError as error:
                faults.append(f"{name}, {kind}: {error}")
            finally:
                _forbid_synchronisation(bench.device, False)
            engine.read()
    _none_of(faults)
    told = "with PyTorch's synchronisation errors on" if bench.device.type == "cuda" else "(nothing to find on a CPU)"
    return f"{rounds} rounds of {len(drafts)} drafters ran {told}"


def check_attention(bench: Bench) -> str:
    """Every kind of batch equals a float64 softmax on the CPU, and no row depends on its neighbours."""
    # Here, so that where some other package is called `tests` it is this check alone that fails.
    from tests.backends.attention_cases import Kind, build, layers_for
    from tests.backends.attention_checks import check_independence, check_values

    backend = SdpaBackend()
    layers = layers_for(backend.capabilities, bench.device)
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    count = 0
    for kind in Kind:
        for dtype in dtypes:
            for page_size in bench.page_sizes:
                check_values(backend, build(kind, layers, page_size, dtype, bench.device, seed=count))
                count += 1
        check_independence(backend, build(kind, layers, 16, torch.float32, bench.device, seed=count))
    return f"{count} batches of {len(Kind)} kinds, {len(layers)} sorts of layers, {len(dtypes)} dtypes"


def check_noise(bench: Bench) -> str:
    """The noise is the CPU's: its bits exactly, its logarithms but for one last bit in a very long while."""
    rows, vocab = (4, 5000) if bench.quick else (32, 128256)
    generator = torch.Generator().manual_seed(7)
    seeds = torch.randint(0, 2**62, (rows,), generator=generator)
    positions = torch.randint(0, 2**20, (rows,), generator=generator)
    keys = (seeds.to(bench.device), positions.to(bench.device))
    ids = torch.arange(vocab)
    assert torch.equal(noise_bits(seeds, positions, ids), noise_bits(*keys, ids.to(bench.device)).cpu()), "bits differ"
    differing = 0
    for noise in (exponential_noise, gumbel_noise):
        differing += _num_different(noise(seeds, positions, vocab), noise(*keys, vocab).cpu())
    assert differing <= 2, f"{differing} of {2 * rows * vocab} values differ, at most 2 may"
    return f"{rows * vocab} words equal; {differing} of {2 * rows * vocab} float32 values differ"


def checks() -> dict[str, Callable[[Bench], str]]:
    """All checks by name. Each returns what it found, or raises with what is wrong."""
    return {
        "noise equals the CPU's": check_noise,
        "attention equals float64": check_attention,
        "float32 greedy text and acceptance": check_greedy,
        "seeded sampling with and without drafts": check_seeds,
        "bfloat16 against its own plain decoding": lambda bench: check_half_precision(bench, torch.bfloat16),
        "float16 against its own plain decoding": lambda bench: check_half_precision(bench, torch.float16),
        "rounds never wait for the device": check_no_synchronisation,
    }


def run_checks(bench: Bench, wanted: dict[str, Callable[[Bench], str]]) -> list[Outcome]:
    """Every check's outcome; one that fails, in whatever way, doesn't keep the others from running."""
    outcomes: list[Outcome] = []
    for name, check in wanted.items():
        try:
            outcomes.append(Outcome(name, True, check(bench)))
        except Exception as error:
            outcomes.append(Outcome(name, False, f"{type(error).__name__}: {error}"))
        print(f"{'ok    ' if outcomes[-1].passed else 'FAILED'} {name}: {outcomes[-1].detail}", flush=True)
    return outcomes


def differences(found: Generated, cases: Sequence[Case], lengths: Sequence[TokenIds] | None) -> list[str]:
    faults = [
        f"prompt {index}: not the reference's tokens"
        for index, (ids, case) in enumerate(zip(found.token_ids, cases, strict=True))
        if ids != case.continuation
    ]
    if lengths is not None:
        # Acceptance is known for the first prompts, in trees not for all.
        faults += [
            f"prompt {index}: accepted {ours}, the reference {wanted}"
            for index, (ours, wanted) in enumerate(zip(found.accept_lengths, lengths, strict=False))
            if ours != wanted
        ]
    return faults


def _none_of(faults: Sequence[str]) -> None:
    shown = "\n    ".join(faults[:12])
    assert not faults, f"{len(faults)} faults\n    {shown}"


@torch.inference_mode()
def gap_where_they_part(target: Target, prompt: TokenIds, one: TokenIds, other: TokenIds) -> float:
    """Distance between the logits of the two tokens at which two continuations part; 0 where they never do."""
    place = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if place is None:
        return 0.0
    stack = target.stack
    device = stack.spec.device
    ids = torch.tensor([*prompt, *one[:place]], device=device)

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))
        scale = stack.spec.layers[layer].scale
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scale, enable_gqa=True)
        return out.transpose(0, 1)

    inputs = StackInputs(torch.arange(len(ids), device=device), attend)
    last = stack.run_layers(stack.embed(ids), inputs).hidden[-1:]
    logits = stack.logits(last)[0]
    return float((logits[one[place]] - logits[other[place]]).abs())


def _num_different(one: Tensor, other: Tensor) -> int:
    return int((one != other).sum())


def _forbid_synchronisation(device: torch.device, forbidden: bool) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.set_sync_debug_mode("error" if forbidden else "default")
