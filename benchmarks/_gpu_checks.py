"""What must hold on a card before its speed is worth a word: texts, acceptance, seeds, synchronisation, numerics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import torch
from attrs import frozen
from torch import Tensor

from benchmarks._backends import EAGER, GRAPHS, attention, runner
from benchmarks._cases import TokenIds, chain_lengths, greedy_cases, tree_cases
from benchmarks._gpu_bench import Bench, differences, gap_where_they_part, generate, mixed_sampling, none_of, unlike
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._progress import timed
from benchmarks._race import Answer, agreement
from outrider import Request, SamplingParams, build_engine
from outrider.interfaces import DrafterBuilder
from outrider.sampling import NoiseStream, _noise_torch
from outrider.sampling._noise_torch import NoiseKey, NoiseKind
from outrider.sampling.noise import add_gumbel, exponential_noise, gumbel_noise, is_fused, noise_bits

__all__ = ["Outcome", "check_ladder", "checks", "run_checks"]

NEAR_TIE = {torch.bfloat16: 0.25, torch.float16: 0.05}
"""How far apart in float32 two logits may be of which half precision takes the lower one (they range over some 30)."""


@frozen
class Outcome:
    """Whether one check passed, and what it found."""

    name: str
    passed: bool
    detail: str


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
        for batch, page_size in bench.batches:
            # One prompt at a time takes longest; one of them tells enough.
            some = cases[:1] if batch == 1 else cases
            prompts = [case.prompt for case in some]
            found = generate(pair, builder, prompts, batch=batch, page_size=page_size, backend=bench.attention)
            where = f"{name}, batch {batch}, pages of {page_size}"
            faults += [f"{where}: {fault}" for fault in differences(found, some, lengths)]
            count += 1
    none_of(faults)
    return f"{count} settings of draft, batch and page size give the reference's tokens and acceptance lengths"


def check_seeds(bench: Bench) -> str:
    """A seed gives the same tokens with any draft and in other batches."""
    pair, cases = bench.pair(), greedy_cases()
    prompts = [case.prompt for case in cases]
    sampling = mixed_sampling(len(prompts))
    plain = generate(pair, None, prompts, sampling, backend=bench.attention)
    drafts: dict[str, DrafterBuilder] = {
        "eagle3 chain 5": pair.chain(5),
        "tree 4x5x15": pair.tree(4, 5, 15),
        "static tree": pair.static_tree(),
        "eagle1 chain 4": pair.eagle1_chain(4),
    }
    faults: list[str] = []
    for name, builder in drafts.items():
        batch = 8 if bench.quick else 3
        drafted = generate(pair, builder, prompts, sampling, batch=batch, backend=bench.attention)
        faults += [f"{name}, batch {batch}: {fault}" for fault in unlike(drafted, plain)]
    none_of(faults)
    return f"{len(drafts)} drafts sample the tokens of plain decoding"


def check_ladder(bench: Bench) -> str:
    """Every step of the ladder gives the text and the acceptance of eager rounds, and is what ran them."""
    pair, cases = bench.pair(), greedy_cases()[: 1 if bench.quick else None]
    prompts = [case.prompt for case in cases]
    sampling = mixed_sampling(len(prompts))
    drafts: list[tuple[str, DrafterBuilder | None, tuple[TokenIds, ...] | None]] = [
        ("off", None, None),
        ("chain 5", pair.chain(5), chain_lengths("eagle3-chain5")),
        ("tree 4x5x15", pair.tree(4, 5, 15), None),
    ]
    faults: list[str] = []
    served: Counter[str] = Counter()
    for name, builder, lengths in drafts[1:2] if bench.quick else drafts:
        eager = generate(pair, builder, prompts, sampling, backend=bench.attention)
        for step, by in zip(GRAPHS, ("breakable", "phase", "round"), strict=True):
            where = f"{step}, {name}"
            greedy = generate(pair, builder, prompts, backend=bench.attention, step=step)
            faults += [f"{where}: {fault}" for fault in differences(greedy, cases, lengths)]
            sampled = generate(pair, builder, prompts, sampling, backend=bench.attention, step=step)
            faults += [f"{where}, sampled: {fault}" for fault in unlike(sampled, eager)]
            for found in (greedy, sampled):
                served[by] += found.ran[by]
                if not found.ran[by]:
                    faults.append(f"{where}: nothing ran as {by}, but {dict(found.ran)}")
    none_of(faults)
    counts = ", ".join(f"{count} as {by}" for by, count in served.items())
    return f"greedy and sampled texts of every step equal to eager ones; served by graphs: {counts}"


def check_half_precision(bench: Bench, dtype: torch.dtype) -> str:
    """Half precision finishes, and a drafted text leaves the plain one only where two tokens are all but equally likely.

    Logits of few bits tie often, and batches of other shapes break ties otherwise; what follows is another text.
    """
    pair, cases = bench.pair(dtype), greedy_cases()
    prompts = [case.prompt for case in cases]
    plain = generate(pair, None, prompts, backend=bench.attention)
    drafts: dict[str, DrafterBuilder] = {"chain 5": pair.chain(5), "tree 4x5x15": pair.tree(4, 5, 15)}
    notes: list[str] = []
    faults: list[str] = []
    for name, found in {
        "plain": plain,
        **{name: generate(pair, made, prompts, backend=bench.attention) for name, made in drafts.items()},
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
    none_of(faults)
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
            engine = build_engine(pair.target, builder, attention=attention(bench.attention), runner=runner(EAGER))
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
    none_of(faults)
    told = "with PyTorch's synchronisation errors on" if bench.device.type == "cuda" else "(nothing to find on a CPU)"
    return f"{rounds} rounds of {len(drafts)} drafters ran {told}"


def check_attention(bench: Bench) -> str:
    """Every kind of batch equals a float64 softmax on the CPU, and no row depends on its neighbours."""
    # Here, so that where some other package is called `tests` it is this check alone that fails.
    from tests.backends.attention_cases import Kind, build, layers_for
    from tests.backends.attention_checks import check_independence, check_values

    backend = attention(bench.attention)
    if bench.attention == "triton":
        # Each sort of layer and dtype is a kernel for every kind, seconds of compiling each: the tests have them all.
        layers = bench.pair().target.stack.spec.layers[:1]
        dtypes = [torch.float32, torch.bfloat16]
    else:
        layers = layers_for(backend.capabilities, bench.device)
        dtypes = [torch.float32, torch.bfloat16, torch.float16]
    count = 0
    for kind in Kind:
        for dtype in dtypes:
            for page_size in bench.page_sizes:
                check_values(backend, build(kind, layers, page_size, dtype, bench.device, seed=count))
                count += 1
        check_independence(backend, build(kind, layers, 16, torch.float32, bench.device, seed=count))
    sorts = f"{len(layers)} sort{'s' if len(layers) > 1 else ''} of layers"
    return f"{count} batches of {len(Kind)} kinds, {sorts}, {len(dtypes)} dtypes"


def check_noise(bench: Bench) -> str:
    """The noise is the CPU's: its bits exactly, its logarithms but for one last bit in a very long while.

    On a card that is the fused kernel's noise, which must be that of torch's operators there as well, alone and added to
    scores.
    """
    rows, vocab = (4, 5000) if bench.quick else (32, 128256)
    generator = torch.Generator().manual_seed(7)
    seeds = torch.randint(0, 2**62, (rows,), generator=generator)
    positions = torch.randint(0, 2**20, (rows,), generator=generator)
    keys = (seeds.to(bench.device), positions.to(bench.device))
    ids = torch.arange(vocab)
    bits = noise_bits(*keys, ids.to(bench.device))
    operators = NoiseKey(*keys, NoiseStream.TARGET)
    assert torch.equal(noise_bits(seeds, positions, ids), bits.cpu()), "bits differ from the CPU's"
    assert torch.equal(_noise_torch.draw("bits", operators, vocab, None), bits), "bits differ from torch's operators"
    noises: dict[NoiseKind, Callable[[Tensor, Tensor, int], Tensor]] = {
        "exponential": exponential_noise,
        "gumbel": gumbel_noise,
    }
    differing = 0
    for kind, noise in noises.items():
        found = noise(*keys, vocab)
        differing += _num_different(noise(seeds, positions, vocab), found.cpu())
        differing += _num_different(_noise_torch.draw(kind, operators, vocab, None), found)
    assert differing <= 2, f"{differing} of {4 * rows * vocab} values differ, at most 2 may"
    scores = torch.randn(rows, 1, vocab, generator=generator).to(bench.device)
    scores[:, :, 2000:] = -torch.inf
    greedy = torch.arange(rows, device=bench.device) % 3 == 0
    wanted = scores + gumbel_noise(*keys, vocab)[:, None].masked_fill(greedy[:, None, None], 0.0)
    assert torch.equal(add_gumbel(scores, keys[0], keys[1][:, None], greedy=greedy), wanted), "sums with scores differ"
    by = "the fused kernel" if is_fused(bench.device) else "torch's operators"
    return f"{rows * vocab} words of {by} equal; {differing} of {4 * rows * vocab} float32 values differ"


def checks() -> dict[str, Callable[[Bench], str]]:
    """All checks by name. Each returns what it found, or raises with what is wrong."""
    return {
        "noise equals the CPU's": check_noise,
        "attention equals float64": check_attention,
        "float32 greedy text and acceptance": check_greedy,
        "seeded sampling with and without drafts": check_seeds,
        "every step of the ladder equals eager rounds": check_ladder,
        "bfloat16 against its own plain decoding": lambda bench: check_half_precision(bench, torch.bfloat16),
        "float16 against its own plain decoding": lambda bench: check_half_precision(bench, torch.float16),
        "rounds never wait for the device": check_no_synchronisation,
    }


def run_checks(bench: Bench, wanted: Mapping[str, Callable[[Bench], str]]) -> Iterator[Outcome]:
    """Every check's outcome as it comes; one that fails, in whatever way, doesn't keep the others from running."""
    for name, check in wanted.items():
        with timed(name):
            try:
                outcome = Outcome(name, True, check(bench))
            except Exception as error:
                outcome = Outcome(name, False, f"{type(error).__name__}: {error}")
        print(f"{'ok    ' if outcome.passed else 'FAILED'} {name}: {outcome.detail}", flush=True)
        yield outcome


def _num_different(one: Tensor, other: Tensor) -> int:
    return int((one != other).sum())


def _forbid_synchronisation(device: torch.device, forbidden: bool) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.set_sync_debug_mode("error" if forbidden else "default")
