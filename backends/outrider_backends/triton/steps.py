"""Steps of the attention kernel: scores, online softmax, the tail of new keys, and what becomes of the result.

Triton compiles these functions; their arguments are its tensors, pointers and constants, which Python cannot type.
Suffixes as in `outrider_backends.triton.kernel`: R folded query rows, K keys, D head dim (padded).
"""

# Triton has no annotations that either checker could follow.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOptionalOperand=false

from __future__ import annotations

import triton  # type: ignore[import-untyped]  # ships no py.typed
import triton.language as tl  # type: ignore[import-untyped]  # ships no py.typed

__all__ = [
    "fold",
    "merge",
    "read_rows",
    "score",
    "store_output",
    "store_partial",
    "tail_of_sequence",
    "tail_of_tree",
    "write_rows",
]

LOG2E = tl.constexpr(1.4426950408889634)

MATCHED = tl.constexpr(16)
"""New tokens that are compared with slots of the tail at a time."""


@triton.jit
def read_rows(base, row_K, row_stride, seen_K, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Rows ``[K, DIM]`` of ``base``; zeros where not seen, which are not read at all."""
    dim_D = tl.arange(0, DIM)
    mask_KD = seen_K[:, None]
    if HEAD_DIM != DIM:
        mask_KD = mask_KD & (dim_D < HEAD_DIM)[None, :]
    return tl.load(base + row_K.to(tl.int64)[:, None] * row_stride + dim_D[None, :], mask=mask_KD, other=0.0)


@triton.jit
def write_rows(base, row_K, row_stride, rows_KD, mask_K, HEAD_DIM: tl.constexpr, DIM: tl.constexpr):
    """Store ``rows [K, DIM]`` where masked; the counterpart of `read_rows`."""
    dim_D = tl.arange(0, DIM)
    mask_KD = mask_K[:, None]
    if HEAD_DIM != DIM:
        mask_KD = mask_KD & (dim_D < HEAD_DIM)[None, :]
    place_KD = row_K.to(tl.int64)[:, None] * row_stride + dim_D[None, :]
    tl.store(base + place_KD, rows_KD.to(base.dtype.element_ty), mask=mask_KD)


@triton.jit
def _tanh(x):
    # exp loses the relative precision of small results, so these come from the series.
    square = x * x
    small = x * (1.0 + square * (-1.0 / 3.0 + square * (2.0 / 15.0 + square * (-17.0 / 315.0))))
    decay = tl.exp2(tl.abs(x) * (-2.0 * LOG2E))
    large = (1.0 - decay) / (1.0 + decay)
    return tl.where(tl.abs(x) < 0.2, small, tl.where(x < 0, -large, large))


@triton.jit
def score(q_RD, k_KD, scale, soft_cap):
    """Scores ``[R, K]`` float32 in base 2. Source of the soft cap: Gemma 2 (arXiv:2408.00118, section 2)."""
    score_RK = tl.dot(q_RD, tl.trans(k_KD), input_precision="ieee") * scale
    if soft_cap is not None:
        score_RK = _tanh(score_RK / soft_cap) * soft_cap
    return score_RK * LOG2E


@triton.jit
def fold(peak_R, total_R, out_RD, score_RK, visible_RK, v_KD):
    """One step of the online softmax. Source: FlashAttention-2 (arXiv:2307.08691, algorithm 1)."""
    score_RK = tl.where(visible_RK, score_RK, float("-inf"))
    newest_R = tl.maximum(peak_R, tl.max(score_RK, 1))
    # A row that has seen nothing yet has no peak to subtract.
    base_R = tl.where(newest_R == float("-inf"), 0.0, newest_R)
    weight_RK = tl.exp2(score_RK - base_R[:, None])
    keep_R = tl.exp2(peak_R - base_R)
    total_R = total_R * keep_R + tl.sum(weight_RK, 1)
    out_RD = tl.dot(weight_RK.to(v_KD.dtype), v_KD, out_RD * keep_R[:, None], input_precision="ieee")
    return newest_R, total_R, out_RD


@triton.jit
def tail_of_sequence(
    peak_R, total_R, out_RD, q_RD, query_R, real_R, k, v, k_token, v_token, slots, first, low, high, scale, soft_cap,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, TAIL_KEYS: tl.constexpr,
):  # fmt: skip
    """Fold in new tokens ``low`` to ``high`` in causal order, from ``k`` and ``v`` themselves: padding is left out."""
    for start in range(low // TAIL_KEYS * TAIL_KEYS, high, TAIL_KEYS):
        token_K = start + tl.arange(0, TAIL_KEYS)
        inside_K = token_K < high
        slot_K = tl.load(slots + first + token_K, mask=inside_K, other=0)
        visible_RK = (token_K[None, :] <= query_R[:, None]) & (slot_K >= 2 * PAGE_SIZE)[None, :] & real_R[:, None]
        if WINDOW > 0:
            visible_RK = visible_RK & (token_K[None, :] > (query_R - WINDOW)[:, None])
        seen_K = tl.max(visible_RK.to(tl.int32), 0) > 0
        k_KD = read_rows(k, first + token_K, k_token, seen_K, HEAD_DIM, DIM)
        v_KD = read_rows(v, first + token_K, v_token, seen_K, HEAD_DIM, DIM)
        peak_R, total_R, out_RD = fold(
            peak_R, total_R, out_RD, score(q_RD, k_KD, scale, soft_cap), visible_RK, v_KD
        )  # fmt: skip
    return peak_R, total_R, out_RD


@triton.jit
def tail_of_tree(
    peak_R, total_R, out_RD, q_RD, query_R, depth_R, real_R, k, v, k_token, v_token, keys, values, keys_slot, values_slot,
    table, slots, tail_mask, tail_depths, first, queries, tail, prefix, limit, scale, soft_cap,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr, TAIL_KEYS: tl.constexpr,
):  # fmt: skip
    """Fold in the tail slots under the request's mask.

    Slots that this pass writes come from ``k`` and ``v``, since other programs are writing them; the rest from the cache.
    """
    for start in range(0, tail, TAIL_KEYS):
        place_K = start + tl.arange(0, TAIL_KEYS)
        inside_RK = real_R[:, None] & (place_K < tail)[None, :]
        visible_RK = tl.load(tail_mask + query_R[:, None] * tail + place_K[None, :], mask=inside_RK, other=0) != 0
        if WINDOW > 0:
            depth_K = place_K
            if tail_depths is not None:
                depth_K = tl.load(tail_depths + place_K, mask=place_K < tail, other=0).to(tl.int32)
            visible_RK = visible_RK & (depth_K[None, :] > (depth_R - WINDOW)[:, None])
        seen_K = tl.max(visible_RK.to(tl.int32), 0) > 0
        position_K = prefix + place_K
        page_K = tl.load(table + position_K // PAGE_SIZE, mask=seen_K & (position_K < limit), other=0)
        slot_K = page_K * PAGE_SIZE + position_K % PAGE_SIZE
        source_K = tl.full([TAIL_KEYS], -1, tl.int32)
        for low in range(0, queries, MATCHED):
            other_Q = low + tl.arange(0, MATCHED)
            written_Q = tl.load(slots + first + other_Q, mask=other_Q < queries, other=0)
            same_KQ = (slot_K[:, None] == written_Q[None, :]) & (written_Q >= 2 * PAGE_SIZE)[None, :]
            source_K = tl.maximum(source_K, tl.max(tl.where(same_KQ, other_Q[None, :], -1), 1))
        new_K = seen_K & (source_K >= 0)
        old_K = seen_K & (source_K < 0)
        new_k_KD = read_rows(k, first + source_K, k_token, new_K, HEAD_DIM, DIM)
        new_v_KD = read_rows(v, first + source_K, v_token, new_K, HEAD_DIM, DIM)
        old_k_KD = read_rows(keys, slot_K, keys_slot, old_K, HEAD_DIM, DIM)
        old_v_KD = read_rows(values, slot_K, values_slot, old_K, HEAD_DIM, DIM)
        k_KD = tl.where(new_K[:, None], new_k_KD, old_k_KD)
        v_KD = tl.where(new_K[:, None], new_v_KD, old_v_KD)
        peak_R, total_R, out_RD = fold(
            peak_R, total_R, out_RD, score(q_RD, k_KD, scale, soft_cap), visible_RK, v_KD
        )  # fmt: skip
    return peak_R, total_R, out_RD


@triton.jit
def store_partial(
    record, peak_R, total_R, out_RD, inside_R, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr
):
    """Leave one split's result in ``record``: rows ``[ROWS, HEAD_DIM]``, then peaks and totals ``[ROWS]``."""
    row_R = tl.arange(0, ROWS)
    dim_D = tl.arange(0, DIM)
    mask_RD = inside_R[:, None] & (dim_D < HEAD_DIM)[None, :]
    tl.store(record + row_R[:, None] * HEAD_DIM + dim_D[None, :], out_RD, mask=mask_RD)
    tl.store(record + ROWS * HEAD_DIM + row_R, peak_R, mask=inside_R)
    tl.store(record + ROWS * (HEAD_DIM + 1) + row_R, total_R, mask=inside_R)


@triton.jit
def merge(
    out, records, num_splits, first, block, count, head, num_heads, sinks,
    GROUPS: tl.constexpr, ROWS: tl.constexpr, MERGED: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Merge the splits of a block of rows in their order, and store the output, ``MERGED`` rows and 8 splits at a time.

    Other programs wrote the records, so they are read past the first cache. S: splits.
    """
    dim_D = tl.arange(0, DIM)
    for start in range(0, tl.minimum(ROWS, count * GROUPS - block * ROWS), MERGED):
        place_R = start + tl.arange(0, MERGED)
        row_R = block * ROWS + place_R
        inside_R = (row_R // GROUPS < count) & (place_R < ROWS)
        peak_R = tl.full([MERGED], float("-inf"), tl.float32)
        total_R = tl.zeros([MERGED], tl.float32)
        out_RD = tl.zeros([MERGED, DIM], tl.float32)
        for split in range(0, num_splits, 8):
            split_S = split + tl.arange(0, 8)
            record_SR = records + split_S[:, None] * (ROWS * (HEAD_DIM + 2)) + place_R[None, :]
            mask_SR = (split_S < num_splits)[:, None] & inside_R[None, :]
            peak_SR = tl.load(
                record_SR + ROWS * HEAD_DIM, mask=mask_SR, other=float("-inf"), cache_modifier=".cg"
            )  # fmt: skip
            total_SR = tl.load(record_SR + ROWS * (HEAD_DIM + 1), mask=mask_SR, other=0.0, cache_modifier=".cg")
            row_SR = record_SR + place_R[None, :] * (HEAD_DIM - 1)
            out_SRD = tl.load(
                row_SR[:, :, None] + dim_D[None, None, :],
                mask=mask_SR[:, :, None] & (dim_D < HEAD_DIM)[None, None, :],
                other=0.0,
                cache_modifier=".cg",
            )
            newest_R = tl.maximum(peak_R, tl.max(peak_SR, 0))
            base_R = tl.where(newest_R == float("-inf"), 0.0, newest_R)
            keep_R = tl.exp2(peak_R - base_R)
            take_SR = tl.exp2(peak_SR - base_R[None, :])
            total_R = total_R * keep_R + tl.sum(total_SR * take_SR, 0)
            out_RD = out_RD * keep_R[:, None] + tl.sum(out_SRD * take_SR[:, :, None], 0)
            peak_R = newest_R
        store_output(
            out, first + row_R // GROUPS, head * GROUPS + row_R % GROUPS, num_heads, peak_R, total_R, out_RD, inside_R,
            sinks, HEAD_DIM, DIM,
        )  # fmt: skip


@triton.jit
def store_output(
    out, token_R, head_R, num_heads, peak_R, total_R, out_RD, inside_R, sinks, HEAD_DIM: tl.constexpr, DIM: tl.constexpr
):
    """Normalise and store rows of ``out [T, num_heads, HEAD_DIM]``; a row that saw nothing is zeros.

    Source of the sinks: gpt-oss (arXiv:2508.10925, section 2.2).
    """
    if sinks is not None:
        sink_R = tl.load(sinks + head_R, mask=inside_R, other=0.0) * LOG2E
        newest_R = tl.maximum(peak_R, sink_R)
        base_R = tl.where(newest_R == float("-inf"), 0.0, newest_R)
        keep_R = tl.exp2(peak_R - base_R)
        total_R = total_R * keep_R + tl.exp2(sink_R - base_R)
        out_RD = out_RD * keep_R[:, None]
    out_RD = out_RD / tl.where(total_R == 0.0, 1.0, total_R)[:, None]
    dim_D = tl.arange(0, DIM)
    mask_RD = inside_R[:, None] & (dim_D < HEAD_DIM)[None, :]
    place_R = (token_R * num_heads + head_R) * HEAD_DIM
    tl.store(out + place_R[:, None] + dim_D[None, :], out_RD.to(out.dtype.element_ty), mask=mask_RD)
