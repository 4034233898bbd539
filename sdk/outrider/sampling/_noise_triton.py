"""The noise as one Triton kernel. Importing this imports Triton.

Words are those of `_noise_torch`, by 32-bit arithmetic, which wraps. Triton's logarithm of doubles is CUDA's own.
"""

# Triton has no stubs, and its language is untyped throughout. What is typed are the launches, in _noise_launch.py.
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-return"
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportOperatorIssue=false

from __future__ import annotations

import triton
import triton.language as tl

__all__ = ["noise_kernel"]

_FIRST_LANE = tl.constexpr(0x243F6A88)
_SECOND_LANE = tl.constexpr(0x85A308D3)
_ROUND = tl.constexpr(0x9E3779B9)
_ID_STEP = tl.constexpr(0x5BD1E995)


@triton.jit
def _mix(bits: tl.tensor) -> tl.tensor:
    bits ^= bits >> 16
    bits *= tl.full((), 0x21F0AAAD, tl.uint32)
    bits ^= bits >> 15
    bits *= tl.full((), 0x735A2D97, tl.uint32)
    return bits ^ (bits >> 15)


@triton.jit
def _row_key(lane: tl.tensor, seed: tl.tensor, position: tl.tensor, word: tl.tensor) -> tl.tensor:
    more = tl.full((), _ROUND, tl.uint32)
    key = _mix((lane ^ seed.to(tl.uint32)) + more)
    key = _mix((key ^ (seed >> 32).to(tl.uint32)) + more)
    key = _mix((key ^ position.to(tl.uint32)) + more)
    return _mix((key ^ word.to(tl.uint32)) + more)


# What changes from call to call is not specialised on: the first call must compile for all later ones, since those may be in
# a capture.
@triton.jit(
    do_not_specialize=["nodes_per_seed", "nodes_per_position", "word"],
    do_not_specialize_on_alignment=["seeds", "positions", "greedy"],
)
def noise_kernel(
    out: tl.tensor,
    scores: tl.tensor | None,
    seeds: tl.tensor,
    positions: tl.tensor,
    ids: tl.tensor | None,
    greedy: tl.tensor | None,
    nodes_per_seed: tl.tensor,
    nodes_per_position: tl.tensor,
    word: tl.tensor,
    width: tl.tensor,
    KIND: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """``out[r] = scores[r] + noise(seeds[r // nodes_per_seed], positions[r // nodes_per_position], word, ids)``.

    Grid (rows, blocks of columns). Without ``scores`` the noise alone, without ``ids`` the columns' numbers; requests that
    ``greedy`` names keep their scores.
    """
    row = tl.program_id(0)
    request = row // nodes_per_seed
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    here = row.to(tl.int64) * width + column
    wanted = True
    if greedy is not None:
        wanted = tl.load(greedy + request) == 0
    if scores is not None:
        score = tl.load(scores + here, inside, float("-inf"))
        # Noise is finite, so where all is filtered out nothing changes. (NaN is not -inf.)
        wanted &= tl.max((score != float("-inf")).to(tl.int32), axis=0) > 0
    else:
        score = tl.zeros((BLOCK,), tl.float32)
    if wanted:
        seed = tl.load(seeds + request)
        position = tl.load(positions + row // nodes_per_position)
        first = _row_key(tl.full((), _FIRST_LANE, tl.uint32), seed, position, word)
        second = _row_key(tl.full((), _SECOND_LANE, tl.uint32), seed, position, word)
        token = column
        if ids is not None:
            token = tl.load(ids + column, inside, 0)
        bits = _mix(token.to(tl.uint32) * tl.full((), _ID_STEP, tl.uint32)) ^ first
        bits = _mix(bits * ((second >> 1) | 1))
        if KIND == "bits":
            tl.store(out + here, bits.to(tl.int64), inside)
        else:
            # Both steps are exact, so it makes no difference whether the compiler fuses them.
            uniform = (bits.to(tl.float64) + 0.5) * (2.0**-32)
            if KIND == "uniform":
                tl.store(out + here, uniform, inside)
            else:
                noise = -tl.log(uniform)
                if KIND == "gumbel":
                    noise = -tl.log(noise)
                tl.store(out + here, score + noise.to(tl.float32), inside)
    else:
        tl.store(out + here, score, inside)
