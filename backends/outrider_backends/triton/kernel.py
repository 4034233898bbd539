"""`attend_kernel`: the new keys and values of one layer written to the paged cache, and attention over it, in one launch.

A program has one kv head of one block of a request's folded query rows (row r is query r // GROUPS, head r % GROUPS of those
that share the kv head), and one split of its prefix. The last split takes the tail as well, and writes the block's share of
the new keys. No program reads a slot that the launch writes: new keys come from ``k`` and ``v``, so programs need no order.
The split that finishes last merges all of them, in their order.

Splits are a function of the request's own prefix and number of queries: not of its neighbours, nor of bounds of the host.

Suffixes: R folded query rows, K keys, D head dim (padded), W new tokens that a program writes.
"""

# Triton has no annotations that either checker could follow.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
# pyright: basic, reportAttributeAccessIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportIndexIssue=false, reportCallIssue=false, reportGeneralTypeIssues=false, reportOptionalOperand=false

from __future__ import annotations

import triton  # type: ignore[import-untyped]  # ships no py.typed
import triton.language as tl  # type: ignore[import-untyped]  # ships no py.typed

from outrider_backends.triton.steps import (
    fold,
    merge,
    read_rows,
    score,
    store_output,
    store_partial,
    tail_of_sequence,
    tail_of_tree,
    write_rows,
)

__all__ = ["INTERPRETED", "attend_kernel"]

MERGED_ROWS = tl.constexpr(8)

INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether kernels are run by Triton's interpreter (``TRITON_INTERPRET=1``), on any device and very slowly."""


@triton.jit(do_not_specialize=["table_row", "queries", "tail", "pages"])
def attend_kernel(
    out, q, k, v, keys, values,
    prefix_lens, page_table, slots, tail_mask, query_depths, tail_depths, items, sinks, partials, tickets,
    q_token, q_head, k_token, k_head, v_token, v_head, keys_slot, keys_head, values_slot, values_head,
    table_row, queries, tail, pages, scale, soft_cap,
    GROUPS: tl.constexpr, HEAD_DIM: tl.constexpr, DIM: tl.constexpr, PAGE_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, TAIL_KEYS: tl.constexpr, WRITES: tl.constexpr,
    ONE_TAIL: tl.constexpr, CHUNK: tl.constexpr, PROGRAMS: tl.constexpr, MOST_SPLITS: tl.constexpr,
):  # fmt: skip
    """Fill ``out [T, num_heads, HEAD_DIM]``; grid (blocks of rows of all requests, kv heads, splits).

    ``items [·, 4]`` int32 names a ragged batch's blocks: request, first token, queries, block. Without it all requests have
    ``queries`` queries. ``tickets`` are zero before and after; ``partials`` may hold anything. Strides count elements, and
    the last axis of every tensor is dense.
    """
    item = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    if items is None:
        blocks = tl.cdiv(queries * GROUPS, ROWS)
        request = item // blocks
        # Later blocks see more keys, so they start first.
        block = blocks - 1 - item % blocks
        count = queries
        first = request.to(tl.int64) * queries
    else:
        request = tl.load(items + item * 4)
        first = tl.load(items + item * 4 + 1).to(tl.int64)
        count = tl.load(items + item * 4 + 2)
        block = tl.load(items + item * 4 + 3)
        blocks = tl.cdiv(count * GROUPS, ROWS)

    # Asked for before all else and stored before the first key arrives, so that nobody waits for these.
    token_W = tl.cdiv(block * ROWS, GROUPS) + tl.arange(0, WRITES)
    inside_W = token_W < tl.minimum(tl.cdiv((block + 1) * ROWS, GROUPS), count)
    slot_W = tl.load(slots + first + token_W, mask=inside_W, other=0)
    k += head * k_head
    v += head * v_head
    new_k_WD = read_rows(k, first + token_W, k_token, inside_W, HEAD_DIM, DIM)
    new_v_WD = read_rows(v, first + token_W, v_token, inside_W, HEAD_DIM, DIM)

    limit = pages * PAGE_SIZE
    prefix = tl.minimum(tl.load(prefix_lens + request), limit).to(tl.int32)

    # The tiles of the prefix that any row sees, and how many splits share them.
    first_query = block * ROWS // GROUPS
    nearest = 0
    if tail_mask is None:
        nearest = first_query
    start = 0
    if WINDOW > 0:
        start = tl.minimum(tl.maximum(prefix + nearest - WINDOW + 1, 0), prefix) // KEYS * KEYS
    tiles = tl.cdiv(prefix - start, KEYS)
    most = tl.minimum(tl.maximum(PROGRAMS // (tl.num_programs(1) * blocks), 1), MOST_SPLITS)
    share = tl.maximum(tl.cdiv(tiles, tl.minimum(most, tl.num_programs(2))), CHUNK // KEYS)
    num_splits = tl.maximum(tl.cdiv(tiles, share), 1)

    if split < num_splits:
        keys += head * keys_head
        values += head * values_head
        is_last = split == num_splits - 1
        written_W = slot_W >= 2 * PAGE_SIZE
        if is_last:
            write_rows(keys, slot_W, keys_slot, new_k_WD, written_W, HEAD_DIM, DIM)
            write_rows(values, slot_W, values_slot, new_v_WD, written_W, HEAD_DIM, DIM)

        row_R = block * ROWS + tl.arange(0, ROWS)
        query_R = row_R // GROUPS
        head_R = head * GROUPS + row_R % GROUPS
        inside_R = query_R < count
        token_R = first + query_R
        real_R = tl.load(slots + token_R, mask=inside_R, other=0) >= 2 * PAGE_SIZE
        depth_R = query_R
        if query_depths is not None:
            depths = query_depths + request.to(tl.int64) * queries
            depth_R = tl.load(depths + query_R, mask=inside_R, other=0).to(tl.int32)
        # Whatever padding rows hold is not read: they become finite.
        q_row_R = token_R * q_token + head_R * q_head
        q_RD = read_rows(q, q_row_R, 1, real_R, HEAD_DIM, DIM)

        peak_R = tl.full([ROWS], float("-inf"), tl.float32)
        total_R = tl.zeros([ROWS], tl.float32)
        out_RD = tl.zeros([ROWS, DIM], tl.float32)
        table = page_table + request.to(tl.int64) * table_row
        low = start + split * share * KEYS
        high = tl.minimum(low + share * KEYS, prefix)
        for place in range(low, high, KEYS):
            position_K = place + tl.arange(0, KEYS)
            seen_K = position_K < high
            if WINDOW > 0:
                seen_K = seen_K & (position_K > prefix + nearest - WINDOW)
            page_K = tl.load(table + position_K // PAGE_SIZE, mask=seen_K, other=0)
            slot_K = page_K * PAGE_SIZE + position_K % PAGE_SIZE
            k_KD = read_rows(keys, slot_K, keys_slot, seen_K, HEAD_DIM, DIM)
            v_KD = read_rows(values, slot_K, values_slot, seen_K, HEAD_DIM, DIM)
            visible_RK = seen_K[None, :]
            if WINDOW > 0:
                visible_RK = visible_RK & ((position_K - prefix)[None, :] > (depth_R - WINDOW)[:, None])
            peak_R, total_R, out_RD = fold(
                peak_R, total_R, out_RD, score(q_RD, k_KD, scale, soft_cap), visible_RK, v_KD
            )  # fmt: skip

        if is_last:
            if ONE_TAIL:
                visible_RW = (token_W[None, :] <= query_R[:, None]) & written_W[None, :]
                if WINDOW > 0:
                    visible_RW = visible_RW & (token_W[None, :] > (query_R - WINDOW)[:, None])
                k_WD = tl.where(written_W[:, None], new_k_WD, 0.0)
                v_WD = tl.where(written_W[:, None], new_v_WD, 0.0)
                peak_R, total_R, out_RD = fold(
                    peak_R, total_R, out_RD, score(q_RD, k_WD, scale, soft_cap), visible_RW, v_WD
                )  # fmt: skip
            elif tail_mask is None:
                oldest = 0
                if WINDOW > 0:
                    oldest = tl.maximum(first_query - WINDOW + 1, 0)
                newest = tl.minimum((block * ROWS + ROWS - 1) // GROUPS + 1, count)
                peak_R, total_R, out_RD = tail_of_sequence(
                    peak_R, total_R, out_RD, q_RD, query_R, real_R, k, v, k_token, v_token, slots, first, oldest, newest,
                    scale, soft_cap, HEAD_DIM, DIM, PAGE_SIZE, WINDOW, TAIL_KEYS,
                )  # fmt: skip
            else:
                mask = tail_mask + request.to(tl.int64) * queries * tail
                depths_of_tail = tail_depths
                if tail_depths is not None:
                    depths_of_tail = tail_depths + request.to(tl.int64) * tail
                peak_R, total_R, out_RD = tail_of_tree(
                    peak_R, total_R, out_RD, q_RD, query_R, depth_R, real_R, k, v, k_token, v_token, keys, values,
                    keys_slot, values_slot, table, slots, mask, depths_of_tail, first, queries, tail, prefix, limit,
                    scale, soft_cap, HEAD_DIM, DIM, PAGE_SIZE, WINDOW, TAIL_KEYS,
                )  # fmt: skip

        num_heads = tl.num_programs(1) * GROUPS
        if num_splits == 1:
            store_output(
                out, token_R, head_R, num_heads, peak_R, total_R, out_RD, inside_R, sinks, HEAD_DIM, DIM
            )  # fmt: skip
        else:
            place = item * tl.num_programs(1) + head
            records = partials + place.to(tl.int64) * tl.num_programs(2) * (ROWS * (HEAD_DIM + 2))
            record = records + split * (ROWS * (HEAD_DIM + 2))
            store_partial(record, peak_R, total_R, out_RD, inside_R, ROWS, HEAD_DIM, DIM)
            # All threads have stored before one of them tells the other programs, which is what makes it visible to them.
            tl.debug_barrier()
            ticket = tl.atomic_add(tickets + place, 1, sem="acq_rel", scope="gpu")
            if ticket == num_splits - 1:
                tl.store(tickets + place, 0)
                merge(
                    out, records, num_splits, first, block, count, head, num_heads, sinks,
                    GROUPS, ROWS, MERGED_ROWS, HEAD_DIM, DIM,
                )  # fmt: skip
