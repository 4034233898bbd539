"""`check_draft`: does a bound draft keep the contract of `BoundDraft`?"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from attrs import evolve

from outrider.conformance.draft_passes import DraftPasses, Fed, last_row
from outrider.conformance.host_reads import forbid_host_reads
from outrider.conformance.paged import WatchedAttend, attend_nothing, differs, run_nothing
from outrider.conformance.report import ConformanceReport, Faults, run_checks
from outrider.conformance.spec_checks import check_draft_spec, check_draft_vocabulary
from outrider.conformance.target_passes import TREE
from outrider.conformance.weights import follows_weight
from outrider.interfaces import AttnBackend, BoundDraft, SharedWeights, Target
from outrider.types import ModelSpec, WeightSource

__all__ = ["check_draft"]


def check_draft(
    draft: BoundDraft, target: Target, *, attention: AttnBackend, seed: int = 0, raise_failures: bool = True
) -> ConformanceReport:
    """Results of every check of ``draft``, run with random tokens, features and states through ``attention``.

    The target is not run; weights that it shares with the draft are changed and restored.

    Raises:
        ConformanceError: with ``raise_failures``, when a check fails; names all that failed, and what to do.
        BindError: the backend cannot serve the draft's layers, so nothing can be checked.
    """
    checks = _DraftChecks(draft, target, attention, seed)
    named: list[tuple[str, Callable[[Faults], None]]] = [
        ("spec", partial(check_draft_spec, draft, target)),
        ("vocabulary", partial(check_draft_vocabulary, draft)),
        ("embed", checks.embed),
        ("extend", checks.extend),
        ("step", checks.step),
        ("logits", checks.logits),
        ("attend calls", checks.attend_calls),
        ("input unchanged", checks.input_unchanged),
        ("embeddings used", checks.embeddings_used),
        ("chunked extend", checks.chunked_extend),
        ("batch independence", checks.batch_independence),
        ("device only", checks.device_only),
    ]
    if draft.spec.taps:
        named.append(("features used", checks.features_used))
    if draft.spec.state is not None:
        named.append(("state used", checks.state_used))
    if attention.capabilities.tree_masks:
        named.append(("tree steps", checks.tree_steps))
    if target.weights is not None:
        named.append(("shared weights", partial(checks.shared_weights, target.weights, target.stack.spec)))
    return run_checks(f"draft '{draft.spec.name}'", named, raise_failures)


class _DraftChecks(DraftPasses):
    """The checks, one method each."""

    # -- single calls ----------------------------------------------------------------------------------------------

    def embed(self, faults: Faults) -> None:
        """Shape, dtype, and no row depends on its place."""
        rows = self._draft.embed(self._ids)
        if self._expect_rows(faults, "embed", rows, self._spec.embed_width, self._spec.dtype):
            turned = self._draft.embed(self._ids.flip(0)).flip(0)
            faults.expect(
                torch.equal(rows, turned), "embed gives a token another embedding at another place in the batch"
            )

    def extend(self, faults: Faults) -> None:
        """Outputs of verified rows: shapes, dtypes, and a state exactly where the spec says so."""
        self._expect_output(faults, "extend", self._extended(self._verified()), len(self._ids))

    def step(self, faults: Faults) -> None:
        """Outputs of drafted rows: the same shapes as those of verified rows."""
        output = self._stepped(self._drafted())
        self._expect_output(faults, "step", output, len(self._lengths))

    def logits(self, faults: Faults) -> None:
        """As wide as the draft's vocabulary, and rows on their own."""
        hidden = self._extended(self._verified()).hidden
        before, rows = hidden.clone(), self._draft.logits(hidden)
        expected = [hidden.shape[0], self._spec.vocab.size]
        shaped = faults.expect(
            list(rows.shape) == expected and rows.is_floating_point(),
            f"logits are {list(rows.shape)} {rows.dtype}, expected {expected} of a float type: over the draft's vocabulary, "
            f"of {self._spec.vocab.size} ids, not the target's",
        )
        faults.expect(torch.equal(before, hidden), "logits changes its input in place; work on a copy")
        if shaped:
            alone = torch.cat([self._draft.logits(row[None]) for row in hidden])
            self._expect_same(faults, alone, rows, "logits of a row alone and in a batch", "look at no other row")

    def attend_calls(self, faults: Faults) -> None:
        """Once per layer in order, with the heads of the spec, in both kinds of pass."""
        expected = list(range(len(self._spec.layers)))
        for name in ("extend", "step"):
            watched = WatchedAttend(attend_nothing, self._spec.layers, self._spec.dtype)
            if name == "extend":
                self._extended(self._verified(), watched)
            else:
                self._stepped(self._drafted(), watched)
            faults.expect(
                watched.called == expected,
                f"{name} called attend for layers {watched.called}, expected {expected}: once for each layer, in order",
            )
            faults.found += [f"{name}: {fault}" for fault in watched.faults]

    def input_unchanged(self, faults: Faults) -> None:
        """Embeddings, features and states are not written to."""
        for name, fed, run in (("extend", self._verified(), self._extended), ("step", self._drafted(), self._stepped)):
            embeds, given = fed.embeds.clone(), None if fed.given is None else fed.given.clone()
            run(fed)
            faults.expect(torch.equal(embeds, fed.embeds), f"{name} changes `embeds` in place; work on a copy")
            if given is not None and fed.given is not None:
                what = "features" if name == "extend" else "state"
                faults.expect(torch.equal(given, fed.given), f"{name} changes `{what}` in place; work on a copy")

    def embeddings_used(self, faults: Faults) -> None:
        """Another token gives another outcome."""
        for name, fed, run in (("extend", self._verified(), self._extended), ("step", self._drafted(), self._stepped)):
            other = Fed(self._random(*fed.embeds.shape), fed.given)
            faults.expect(
                differs(run(other).hidden, run(fed).hidden),
                f"{name} gives the same for other embeddings; it must look at the token",
            )

    def features_used(self, faults: Faults) -> None:
        """Every tap that the spec asks for has a say in verified rows."""
        fed, width = self._verified(), self._spec.feature_width // len(self._spec.taps)
        assert fed.given is not None, "this check runs for drafts with taps"
        plain = self._extended(fed)
        for place, tap in enumerate(self._spec.taps):
            changed = fed.given.clone()
            changed[:, place * width : (place + 1) * width] = self._random(len(changed), width)
            faults.expect(
                differs(self._extended(Fed(fed.embeds, changed)).hidden, plain.hidden),
                f"extend gives the same for other features of tap {place} ({tap}); use it, or do not ask for it in spec.taps",
            )

    def state_used(self, faults: Faults) -> None:
        """Another state gives another outcome of a step."""
        fed = self._drafted()
        other = Fed(fed.embeds, self._random_states(len(fed.embeds)))
        faults.expect(
            differs(self._stepped(other).hidden, self._stepped(fed).hidden),
            "step gives the same for another state; use it, or set spec.state to None",
        )

    def device_only(self, faults: Faults) -> None:
        """Nothing is read back to the host."""
        draft, verified, drafted = self._draft, self._verified(), self._drafted()
        rows, below = self._rows(), self._rows_below(self._memory())
        first, then = (evolve(self._inputs(each, attend_nothing), outside=run_nothing) for each in (rows, below))
        with faults.catching(), forbid_host_reads():
            draft.embed(self._ids)
            output = draft.extend(verified.embeds, verified.given, first)
            self._spec.vocab.to_target(draft.logits(output.hidden).argmax(dim=-1))
        with faults.catching(), forbid_host_reads():
            draft.step(drafted.embeds, drafted.given, then)

    # -- several passes --------------------------------------------------------------------------------------------

    def chunked_extend(self, faults: Faults) -> None:
        """Verified pairs in pieces give what they give at once."""
        whole, fed = self._extended(self._verified()), self._verified()
        first = [max(length - 3, 1) for length in self._lengths]
        rest = [length - n for length, n in zip(self._lengths, first, strict=True)]
        memory, starts = self._memory(), self._starts()
        for prefixes, counts in (([0] * len(first), first), (first, rest)):
            chosen = [s + p + i for s, p, n in zip(starts, prefixes, counts, strict=True) for i in range(n)]
            output = self._run_extend(self._pick(fed, chosen), memory.rows(prefixes, counts))
            what, remedy = "verified pairs in pieces and at once", "use the positions given; keep nothing between calls"
            self._expect_same_output(faults, output, whole, chosen, what, remedy)

    def batch_independence(self, faults: Faults) -> None:
        """A request alone and in a batch."""
        whole, fed = self._extended(self._verified()), self._verified()
        for start, length in zip(self._starts(), self._lengths, strict=True):
            chosen = list(range(start, start + length))
            alone = self._run_extend(self._pick(fed, chosen), self._memory(1).rows([0], [length]))
            remedy = "rows of one request must not see another's"
            self._expect_same_output(faults, alone, whole, chosen, "a request alone and in a batch", remedy)

    def tree_steps(self, faults: Faults) -> None:
        """Every node of a branching tree gives what its own path gives as a chain."""
        count = len(TREE.parents)
        memory = self._memory()
        self._run_extend(self._verified(), memory.rows([0] * len(self._lengths), self._lengths))
        everything = Fed(self._draft.embed(self._drafted_ids), self._states)
        found = self._run_step(
            self._pick(everything, range(len(self._drafted_ids))), memory.tree_rows(self._lengths, TREE)
        )
        for place, length in enumerate(self._lengths):
            start = self._starts()[place]
            for row in range(count):
                alone = self._memory(1)
                pairs = self._pick(self._verified(), list(range(start, start + length)))
                self._run_extend(pairs, alone.rows([0], [length]))
                path = [place * count + node for node in TREE.path_to(row)]
                chain = self._run_step(self._pick(everything, path), alone.rows([length], [len(path)]))
                last = last_row(chain)
                what, remedy = (
                    "a drafted node of a tree and its path as a chain",
                    "siblings share positions: use those given",
                )
                self._expect_same_output(faults, last, found, [place * count + row], what, remedy)

    def shared_weights(self, weights: SharedWeights, model: ModelSpec, faults: Faults) -> None:
        """What the spec says comes from the target is the target's own storage, or its rows, and used as the target does."""
        spec, token = self._spec, int(self._ids[0])
        hidden = self._extended(self._verified()).hidden.clone()
        if spec.embedding is WeightSource.TARGET:
            rows = weights.embedding.index_select(0, self._ids) * model.embedding_scale
            remedy = f"multiply rows by the target's embedding_scale, {model.embedding_scale}"
            self._expect_same(faults, self._draft.embed(self._ids), rows, "embed and the target's embed", remedy)
            faults.expect(
                follows_weight(weights.embedding, token, lambda: self._draft.embed(self._ids[:1])),
                "spec.embedding is the target's, but embed does not follow a change of it: share the storage, do not copy",
            )
        if spec.head is WeightSource.TARGET:
            faults.expect(
                follows_weight(weights.head, token, lambda: self._draft.logits(hidden[:1])),
                "spec.head is the target's, but logits do not follow a change of it: share the storage, do not copy",
            )
        if spec.head is not WeightSource.OWN:
            ids = spec.vocab.target_ids
            head = weights.head if ids is None else weights.head.index_select(0, ids)
            expected = model.logit_scaling.apply(hidden @ head.T)
            remedy = (
                f"take the head's rows in the order of vocab.target_ids, and apply the target's {model.logit_scaling}"
            )
            self._expect_same(faults, self._draft.logits(hidden), expected, "logits and the target's head's", remedy)
