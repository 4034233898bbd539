"""Every choice about drafting, named once: keywords of `load` and flags of ``outrider generate`` are made from this table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Never, TypedDict, cast, get_args

import attrs
from attrs import field, frozen

from outrider.drafting.static_tree import check_parents
from outrider.drafting.tree import num_candidates
from outrider.errors import ConfigurationError, Problems
from outrider.generation.fields import option, read_options, unknown_names
from outrider.generation.values import choice, ids, ids_or_path, integer, switch, taps, text
from outrider.interfaces import ProposalKind
from outrider.types import HiddenTap

__all__ = ["AUTO", "ChainShape", "DraftShape", "DraftingKeywords", "DraftingOptions", "DynamicShape", "StaticShape"]

AUTO = "auto"
DEFAULT_CHAIN = 5
DEFAULT_DEPTH = 5
DEFAULT_TREE_TOKENS = 15


class DraftingKeywords(TypedDict, total=False):
    """The keywords of `load` about drafting, for type checkers: the fields of `DraftingOptions`."""

    drafter: str
    num_draft_tokens: int | None
    adaptive: bool
    tree_width: int
    tree_depth: int | None
    tree: Sequence[int] | None
    verifier: str
    proposal: Literal["auto", "greedy", "coupled", "sampled"]
    hot_tokens: str | Path | Sequence[int] | None
    taps: Sequence[HiddenTap | int | Literal["final_norm"]] | None
    tap_convention: Literal["boundary", "layer_output"] | None


@frozen
class ChainShape:
    """Chains of ``length`` tokens; 0 drafts nothing."""

    length: int


@frozen
class DynamicShape:
    """Trees that grow with the draft's confidence, as `outrider.TreeBuilder`."""

    width: int
    depth: int
    num_tokens: int


@frozen
class StaticShape:
    """One tree, as `outrider.StaticTreeBuilder`."""

    parents: tuple[int, ...]

    @property
    def is_chain(self) -> bool:
        """Whether every node is the child of the one before it."""
        return self.parents == tuple(range(len(self.parents)))


DraftShape = ChainShape | DynamicShape | StaticShape


@frozen(kw_only=True)
class DraftingOptions:
    """What is drafted, how, and how it is verified. Every field is a keyword of `load` and a flag of ``outrider generate``."""

    drafter: str = field(
        default=AUTO,
        metadata=option(
            text,
            "What drafts: 'auto' is what the draft's checkpoint is (eagle3, eagle, …), 'standalone' lets a plain language "
            "model draft, 'ngram' looks the text up in itself and needs no draft.",
        ),
    )
    num_draft_tokens: int | None = field(
        default=None,
        metadata=option(
            integer,
            "Tokens drafted a round; 0 drafts nothing.",
            optional=True,
            default=f"{DEFAULT_CHAIN}; in a tree {DEFAULT_TREE_TOKENS}, or all candidates where those are fewer",
        ),
    )
    adaptive: bool = field(
        default=False,
        metadata=option(
            switch,
            "Settle the length of each round's chain by measured acceptance and measured costs; num_draft_tokens is then "
            "the longest. The text does not depend on it.",
        ),
    )
    tree_width: int = field(
        default=1, metadata=option(integer, "Nodes a level of a dynamic draft tree; 1 drafts a chain.")
    )
    tree_depth: int | None = field(
        default=None,
        metadata=option(integer, "Levels of a dynamic draft tree.", optional=True, default=str(DEFAULT_DEPTH)),
    )
    tree: tuple[int, ...] | None = field(
        default=None,
        metadata=option(
            ids,
            "A fixed draft tree: the parent of each node, 0 the root, level by level. E.g. 0,0,1,1,2: two nodes below the "
            "root, two below the first and one below the second of them.",
            optional=True,
            flag="list",
        ),
    )
    verifier: str = field(
        default="exact",
        metadata=option(
            text,
            "Which drafted tokens are accepted: 'exact' gives the very tokens of plain decoding, 'rejection' and 'block' "
            "(chains only) its distribution, 'typical' another distribution when sampling.",
        ),
    )
    proposal: Literal["auto", ProposalKind] = field(
        default=AUTO,
        metadata=option(
            choice(AUTO, *get_args(ProposalKind)),
            "How tokens are drafted when sampling: the most probable ones, with the target's own noise, or drawn from the "
            "draft's distribution; 'auto' is what suits the verifier.",
        ),
    )
    hot_tokens: tuple[int, ...] | Path | None = field(
        default=None,
        metadata=option(
            ids_or_path, "JSON list of the token ids that the head which drafts is cut to.", optional=True, flag="path"
        ),
    )
    taps: tuple[HiddenTap, ...] | None = field(
        default=None,
        metadata=option(
            taps,
            "Boundaries of the target that the draft is fed, in order, in place of those of its checkpoint. E.g. 2,4,6 or "
            "final_norm.",
            optional=True,
            flag="list",
        ),
    )
    tap_convention: Literal["boundary", "layer_output"] | None = field(
        default=None,
        metadata=option(
            choice("boundary", "layer_output"),
            "What the layer ids in the draft's config count.",
            optional=True,
            default="as its config says",
        ),
    )

    @classmethod
    def of(cls, values: Mapping[str, object]) -> DraftingOptions:
        """The options that ``values`` (JSON, or their own types) name; the others as by default.

        Raises:
            ConfigurationError: unknown names, or values of the wrong type; all at once.
        """
        unknown = unknown_names("options", values, cls.names())
        if unknown is not None:
            raise ConfigurationError(unknown)
        changes = read_options(cls, values, "drafting options", ConfigurationError)
        # Every value has been read by its own field's reader, which no type checker can follow through the table.
        return cls(**cast("dict[str, Never]", changes))

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of all options."""
        return [attribute.name for attribute in attrs.fields(cls)]

    def keywords(self) -> DraftingKeywords:
        """These options as keywords of `load`."""
        return DraftingKeywords(
            drafter=self.drafter,
            num_draft_tokens=self.num_draft_tokens,
            adaptive=self.adaptive,
            tree_width=self.tree_width,
            tree_depth=self.tree_depth,
            tree=self.tree,
            verifier=self.verifier,
            proposal=self.proposal,
            hot_tokens=self.hot_tokens,
            taps=self.taps,
            tap_convention=self.tap_convention,
        )

    @property
    def drafts_nothing(self) -> bool:
        """Whether drafting is turned off."""
        return self.num_draft_tokens == 0

    def shape(self, problems: Problems) -> DraftShape:
        """What is proposed each round; sizes that cannot be are added to ``problems``."""
        for name, value, least in (
            ("num_draft_tokens", self.num_draft_tokens, "0 (no drafting)"),
            ("tree_width", self.tree_width, "1 (a chain)"),
            ("tree_depth", self.tree_depth, "1"),
        ):
            if value is not None and value < int(least[0]):
                problems.add(f"{name} is {value}, {least} or more is needed")
        if self.drafts_nothing:
            return ChainShape(0)
        if self.tree is not None:
            return self._static(self.tree, problems)
        width, depth, count = self.tree_width, self.tree_depth, self.num_draft_tokens
        if width < 1 or (depth is not None and depth < 1) or (count is not None and count < 0):
            return ChainShape(DEFAULT_CHAIN)  # the problems are noted, the rest can be checked all the same
        if width == 1:
            most = depth
            shape: DraftShape = ChainShape(count or depth or DEFAULT_CHAIN)
        else:
            depth = depth or DEFAULT_DEPTH
            most = num_candidates(width, depth)
            shape = DynamicShape(width, depth, count or min(most, DEFAULT_TREE_TOKENS))
        if most is not None and count is not None and count > most:
            problems.add(
                f"num_draft_tokens is {count}; width {width} and depth {depth} give at most k + k²(d - 1) = {most} "
                "candidates: ask for fewer, or for a wider or deeper tree"
            )
        return shape

    def _static(self, parents: tuple[int, ...], problems: Problems) -> StaticShape:
        try:
            check_parents(parents)
        except ConfigurationError as error:
            problems.add(f"tree: {error}")
        if self.tree_width != 1 or self.tree_depth is not None:
            problems.add("a fixed tree is given beside the width or depth of a dynamic one; leave one of them out")
        if self.num_draft_tokens not in (None, len(parents)):
            problems.add(
                f"num_draft_tokens is {self.num_draft_tokens}, and the tree has {len(parents)} nodes; leave it out"
            )
        return StaticShape(parents)
