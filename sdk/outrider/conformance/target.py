"""`check_target`: does a target keep the contract of `LayerStackProvider` and `SharedWeights`?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from attrs import evolve

from outrider.binding import check_shared_embedding, check_shared_head
from outrider.conformance.host_reads import forbid_host_reads
from outrider.conformance.media_bodies import check_media_bodies
from outrider.conformance.paged import WatchedAttend, attend_nothing, differs, offset, run_nothing
from outrider.conformance.report import ConformanceReport, Faults, run_checks
from outrider.conformance.spec_checks import check_model_spec
from outrider.conformance.target_passes import TREE, TargetPasses
from outrider.conformance.weights import follows_weight
from outrider.interfaces import AttnBackend, SharedWeights, Target
from outrider.types import HiddenTap

__all__ = ["check_target"]


def check_target(
    target: Target, *, attention: AttnBackend, seed: int = 0, raise_failures: bool = True
) -> ConformanceReport:
    """Results of every check of ``target``, run with random tokens through ``attention``.

    The target must run on its own device with this backend; its weights are changed and restored where it shares them.

    Raises:
        ConformanceError: with ``raise_failures``, when a check fails; names all that failed, and what to do.
        BindError: the backend cannot serve the target's layers, so nothing can be checked.
    """
    checks = _TargetChecks(target, attention, seed)
    named: list[tuple[str, Callable[[Faults], None]]] = [
        ("spec", partial(check_model_spec, target)),
        ("embed", checks.embed),
        ("logits", checks.logits),
        ("attend calls", checks.attend_calls),
        ("input unchanged", checks.input_unchanged),
        ("taps", checks.taps),
        ("tap boundaries", checks.tap_boundaries),
        ("chunked prefill", checks.chunked_prefill),
        ("cached decode", checks.cached_decode),
        ("batch independence", checks.batch_independence),
        ("device only", checks.device_only),
    ]
    if attention.capabilities.tree_masks:
        named.append(("tree verification", checks.tree_verification))
    if target.weights is not None:
        named.append(("shared weights", partial(checks.shared_weights, target.weights)))
    if target.media is not None:
        named.append(("media bodies", partial(check_media_bodies, target.media, target.stack.spec.device, seed)))
    return run_checks(f"target '{target.stack.spec.name}'", named, raise_failures)


class _TargetChecks(TargetPasses):
    """The checks, one method each."""

    # -- single calls ----------------------------------------------------------------------------------------------

    def embed(self, faults: Faults) -> None:
        """Shape, dtype, and no row depends on its place."""
        spec = self._spec
        ids = torch.tensor([0, spec.vocab_size - 1, *self._sequences[0]], device=spec.device)
        rows = self._stack.embed(ids)
        self._expect_rows(faults, "embed", rows, (len(ids), spec.hidden_size))
        if not faults.found:
            turned = self._stack.embed(ids.flip(0)).flip(0)
            faults.expect(
                torch.equal(rows, turned), "embed gives a token another embedding at another place in the batch"
            )
            faults.expect(
                bool(rows.isfinite().all()), "embed gives NaN or infinite values; check how weights are loaded"
            )

    def logits(self, faults: Faults) -> None:
        """Shape, dtype, rows on their own, and the input left alone."""
        hidden = self._whole(self._sequences).hidden
        before = hidden.clone()
        rows = self._stack.logits(hidden)
        expected = [hidden.shape[0], self._spec.vocab_size]
        shaped = faults.expect(
            list(rows.shape) == expected and rows.is_floating_point(),
            f"logits are {list(rows.shape)} {rows.dtype}, expected {expected} of a float type; one row for each row given, "
            "over the whole vocabulary of the spec",
        )
        faults.expect(torch.equal(before, hidden), "logits changes its input in place; work on a copy")
        if shaped:
            alone = torch.cat([self._stack.logits(row[None]) for row in hidden])
            self._expect_same(faults, alone, rows, "logits of a row alone and in a batch", "look at no other row")

    def attend_calls(self, faults: Faults) -> None:
        """Once per layer in order, with the heads of the spec."""
        rows = self._fresh_rows(self._sequences)
        watched = WatchedAttend(attend_nothing, self._spec.layers, self._spec.dtype)
        with faults.catching():
            self._stack.run_layers(self._embedded(self._sequences), self._inputs(rows, (), watched))
        expected = list(range(self._spec.num_layers))
        faults.expect(
            watched.called == expected,
            f"attend was called for layers {watched.called}, expected {expected}: exactly once for each layer, in order",
        )
        faults.found += watched.faults

    def input_unchanged(self, faults: Faults) -> None:
        """Neither the embeddings nor the positions are written to."""
        rows, hidden = self._fresh_rows(self._sequences), self._embedded(self._sequences)
        kept, positions = hidden.clone(), rows.positions.clone()
        self._run(hidden, rows)
        faults.expect(
            torch.equal(kept, hidden), "run_layers changes its input `hidden` in place; make the first residual new"
        )
        faults.expect(torch.equal(positions, rows.positions), "run_layers changes `positions` in place")

    def taps(self, faults: Faults) -> None:
        """As many as asked, in the order asked; the two that are known beforehand hold what they must."""
        plain = self._whole(self._sequences)
        faults.expect(plain.taps == (), f"{len(plain.taps)} taps came where none was asked; return an empty tuple")
        self._expect_rows(faults, "run_layers", plain.hidden, tuple(self._embedded(self._sequences).shape))
        every = (*map(HiddenTap, range(self._spec.num_layers + 1)), HiddenTap.final_norm())
        asked = (*every[::-1], every[0], every[0])
        forward, backward = self._whole(self._sequences, every), self._whole(self._sequences, asked)
        for got, wanted in ((forward, every), (backward, asked)):
            if not faults.expect(
                len(got.taps) == len(wanted),
                f"{len(wanted)} taps were asked ({', '.join(map(str, wanted))}), {len(got.taps)} came; give exactly those "
                "asked, also one that is asked twice",
            ):
                return
        self._expect_same(
            faults, forward.hidden, plain.hidden, "hidden with taps and without", "taps must change nothing"
        )
        normed = "final_norm and the hidden state returned"
        self._expect_same(faults, forward.taps[-1], forward.hidden, normed, "tap after the final norm")
        for place, tap in enumerate(asked):
            expected = forward.taps[every.index(tap)]
            same = f"{tap} asked in another order"
            self._expect_same(faults, backward.taps[place], expected, same, "give taps in the order asked")

    def tap_boundaries(self, faults: Faults) -> None:
        """Boundary i lies before layer i: another outcome of layer i's attention shows from boundary i + 1 on."""
        self._boundary_zero(faults)
        every = tuple(map(HiddenTap, range(self._spec.num_layers + 1)))
        plain = self._whole(self._sequences, every)
        for layer in range(self._spec.num_layers):
            changed = self._shifted(every, layer)
            for tap, before, after in zip(every, plain.taps, changed.taps, strict=True):
                boundary = tap.boundary or 0
                faults.expect(
                    differs(after, before) == (boundary > layer),
                    f"{tap} {'does not depend' if boundary > layer else 'depends'} on the attention of layer {layer}; "
                    "boundary i is the residual stream before layer i, so the output of layer i is boundary i + 1",
                )

    def _boundary_zero(self, faults: Faults) -> None:
        """Boundary 0 is made of a row and its position alone (learned positions may be added), before any norm."""
        first = (HiddenTap(0),)
        (together,) = self._whole(self._sequences, first).taps
        hidden, inputs = self._embedded(self._sequences), self._inputs(self._fresh_rows(self._sequences), first)
        remedy = "before layer 0 a row is its embedding, and what its position adds: no attention, no other row"
        for row in range(len(hidden)):
            found = self._alone(hidden, inputs, row)
            self._expect_same(
                faults, found, together[row : row + 1], "boundary 0 of a row alone and in a batch", remedy
            )
        # What a norm gives is the same for a row of any size; the residual stream grows with it.
        grown = self._alone(hidden * 16, inputs, len(hidden) - 1)
        faults.expect(
            offset(grown, together[-1:]) > 0.1,
            "boundary 0 stays as it is when its row is 16 times as large, as after a norm; tap the residual stream before it",
        )

    def device_only(self, faults: Faults) -> None:
        """Nothing is read back to the host."""
        spec = self._spec
        ids = torch.tensor(self._sequences[0], device=spec.device)
        rows = self._fresh_rows(self._sequences[:1])
        taps = (HiddenTap(0), HiddenTap.final_norm())
        inputs = evolve(self._inputs(rows, taps, attend_nothing), outside=run_nothing)
        with faults.catching(), forbid_host_reads():
            self._stack.logits(self._stack.run_layers(self._stack.embed(ids), inputs).hidden)

    # -- several passes --------------------------------------------------------------------------------------------

    def chunked_prefill(self, faults: Faults) -> None:
        """Prompts in pieces give what whole prompts give."""
        whole = self._split(self._whole(self._sequences).hidden)
        for size in (1, 2, 5):
            pieces = self._in_pieces(self._sequences, size)
            for found, expected in zip(pieces, whole, strict=True):
                what = f"a prompt in chunks of {size} and whole"
                self._expect_same(faults, found, expected, what, "rows must depend on positions and the cache alone")

    def cached_decode(self, faults: Faults) -> None:
        """Tokens one by one after a prompt give what a prefill of all gives, with the positions that they are told."""
        whole = self._split(self._whole(self._sequences).hidden)
        memory = self._memory(len(self._sequences))
        split = [max(len(sequence) - 3, 1) for sequence in self._sequences]
        self._pass(memory.rows([0] * len(split), split), [s[:n] for s, n in zip(self._sequences, split, strict=True)])
        for step in range(min(len(s) - n for s, n in zip(self._sequences, split, strict=True))):
            places = [n + step for n in split]
            ids = [[sequence[place]] for sequence, place in zip(self._sequences, places, strict=True)]
            found = self._pass(memory.rows(places, [1] * len(places)), ids).hidden
            expected = torch.stack([rows[place] for rows, place in zip(whole, places, strict=True)])
            what = "a token decoded on its own and the same token in a prefill"
            self._expect_same(faults, found, expected, what, "use the positions given; keep nothing between calls")

    def batch_independence(self, faults: Faults) -> None:
        """A request alone, in a batch and in a batch of another order."""
        whole = self._split(self._whole(self._sequences).hidden)
        turned = self._split(self._whole(self._sequences[::-1]).hidden, self._sequences[::-1])[::-1]
        for place, sequence in enumerate(self._sequences):
            alone = self._whole([sequence]).hidden
            remedy = "rows of one request must not see another's"
            self._expect_same(faults, whole[place], alone, "a request in a batch and alone", remedy)
            self._expect_same(faults, turned[place], alone, "a request in a batch of another order and alone", remedy)

    def tree_verification(self, faults: Faults) -> None:
        """Every node of a branching tree gives what its own path gives as a sequence."""
        memory = self._memory(len(self._sequences), extra=len(TREE.parents))
        lengths = [len(sequence) for sequence in self._sequences]
        self._pass(memory.rows([0] * len(lengths), lengths), self._sequences)
        found = self._pass(memory.tree_rows(lengths, TREE), [self._drafted] * len(lengths)).hidden
        for place, sequence in enumerate(self._sequences):
            for row in range(len(TREE.parents)):
                path = [self._drafted[node] for node in TREE.path_to(row)]
                expected = self._whole([[*sequence, *path]]).hidden[-1]
                what = "a node of a draft tree and its path as a sequence"
                remedy = "siblings share positions: use the positions given, never the order of rows"
                self._expect_same(faults, found[place * len(TREE.parents) + row], expected, what, remedy)

    def shared_weights(self, weights: SharedWeights, faults: Faults) -> None:
        """The very tensors that the stack uses, and no scale or cap that the spec keeps to itself."""
        spec = self._spec
        expected = [spec.vocab_size, spec.hidden_size]
        for name, weight in (("embedding", weights.embedding), ("head", weights.head)):
            faults.expect(
                list(weight.shape) == expected and weight.dtype == spec.dtype,
                f"the shared {name} is {list(weight.shape)} {weight.dtype}, expected {expected} {spec.dtype}",
            )
        if faults.found:
            return
        for problem in (
            *check_shared_embedding(self._stack, weights),
            *check_shared_head(self._stack, weights),
        ):
            faults.add(problem)
        hidden = self._whole(self._sequences).hidden
        scaled = spec.logit_scaling.apply(hidden @ weights.head.T)
        remedy = (
            f"share the head that `logits` uses, and declare what it applies besides (spec has {spec.logit_scaling})"
        )
        self._expect_same(faults, self._stack.logits(hidden), scaled, "logits and hidden @ head.T, scaled", remedy)
        token = self._sequences[0][0]
        ids = torch.tensor([token], device=spec.device)
        for name, weight, use in (
            ("embedding", weights.embedding, lambda: self._stack.embed(ids)),
            ("head", weights.head, lambda: self._stack.logits(hidden[:1])[:, token]),
        ):
            faults.expect(
                follows_weight(weight, token, use),
                f"the shared {name} is a copy: the stack does not follow a change of it; share the storage the stack uses",
            )
