"""What drafts and what verifies, settled from a user's wishes before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from attrs import evolve, frozen

from outrider import registry
from outrider.checkpoint import Checkpoint, load_hot_tokens
from outrider.drafting.adaptive import AdaptiveChainBuilder
from outrider.drafting.builders import ChainBuilder, StaticTreeBuilder, TreeBuilder
from outrider.drafting.choosing import ProposalMode
from outrider.errors import CheckpointError, ConfigurationError, Problems
from outrider.generation.drafting import AUTO, ChainShape, DraftingOptions, DraftShape, DynamicShape, StaticShape
from outrider.interfaces import BoundDraft, DrafterBuilder, LoadOptions, UnboundDraft, VerifierChoice
from outrider.types import DraftOverrides, TapConvention

__all__ = ["DraftPlan", "drafter_names", "read_hot_tokens"]


def drafter_names() -> tuple[str, ...]:
    """What may be asked for: `AUTO` (the loader that recognises the draft), draft loaders, drafters without a model."""
    return (AUTO, *registry.names(registry.DRAFTS), *registry.names(registry.DRAFTERS))


def read_hot_tokens(
    hot_tokens: str | Path | Sequence[int] | None, allow_pickle: bool = False
) -> tuple[int, ...] | None:
    """The ids given, or those of the file given; `outrider.checkpoint.load_hot_tokens` says what may be wrong with one."""
    if hot_tokens is None:
        return None
    if isinstance(hot_tokens, (str, Path)):
        return load_hot_tokens(Path(hot_tokens).expanduser(), allow_pickle)
    return tuple(hot_tokens)


@frozen(eq=False)
class DraftPlan:
    """Checked wishes. ``shape``: what is proposed each round, and ``mode``: how. ``verifier``: what accepts it."""

    options: DraftingOptions
    shape: DraftShape
    mode: ProposalMode
    verifier: VerifierChoice

    @classmethod
    def of(cls, options: DraftingOptions, has_draft: bool, explicit: bool) -> DraftPlan:
        """The plan, if ``options`` make sense together.

        ``has_draft``: a draft model is named; ``explicit``: by the user, it is not merely that of the pair.

        Raises:
            ConfigurationError: unknown names, or wishes that contradict each other; all at once.
            PluginError: the package of the verifier cannot be imported.
        """
        with Problems("drafting cannot be set up as asked", ConfigurationError) as problems:
            shape = options.shape(problems)
            known = registry.names(registry.VERIFIERS)
            verifier = registry.verifier(options.verifier) if options.verifier in known else None
            if verifier is None:
                problems.add(f"verifier '{options.verifier}' is not known; known are: {', '.join(known)}")
            elif verifier.verifier.chains_only and not _is_chain(shape):
                problems.add(
                    f"verifier {options.verifier} is defined for chains only, and a tree is asked; leave the tree out, or "
                    "verify it with exact or rejection"
                )
            if options.tap_convention is not None and options.taps is not None:
                problems.add(f"tap_convention {options.tap_convention} is given beside taps, which are absolute")
            _check_drafter(problems, options, has_draft, explicit)
            mode = _mode(problems, options, shape, verifier)
        assert verifier is not None, "an unknown one was a problem"
        return cls(options, shape, mode, verifier)

    @property
    def needs_model(self) -> bool:
        """Whether a draft model runs, provided that one is given."""
        return not self.options.drafts_nothing and not _is_model_free(self.options)

    def load(self, directory: Path, options: LoadOptions, allow_pickle: bool = False) -> UnboundDraft:
        """The draft in ``directory``, with what the user says of it in place of what its checkpoint says.

        Raises:
            CheckpointError: the draft or the file of hot tokens is missing, foreign or faulty.
            ConfigurationError: the draft is good, but cannot honour what the user says of it.
        """
        wishes = self.options
        convention = None if wishes.tap_convention is None else TapConvention(wishes.tap_convention)
        overrides = DraftOverrides(
            taps=wishes.taps,
            tap_convention=convention,
            hot_tokens=read_hot_tokens(wishes.hot_tokens, allow_pickle),
        )
        checkpoint = Checkpoint(directory, allow_pickle)
        loader = None if wishes.drafter == AUTO else wishes.drafter
        try:
            return registry.load_draft(checkpoint, evolve(options, overrides=overrides), loader=loader)
        except CheckpointError as error:
            if overrides == DraftOverrides():
                raise
            # Without the wishes it fails with its own fault, or the wishes are at fault.
            registry.load_draft(checkpoint, evolve(options, overrides=DraftOverrides()), loader=loader)
            raise ConfigurationError(f"the draft cannot be used as asked: {error}") from error

    def builder(self, draft: BoundDraft | None) -> DrafterBuilder | None:
        """What builds the drafter, from ``draft`` where a model drafts; ``None`` when nothing drafts."""
        if self.options.drafts_nothing:
            return None
        if _is_model_free(self.options):
            assert isinstance(self.shape, ChainShape), "trees without a model are refused"
            return registry.INSTALLED.create(registry.DRAFTERS, self.options.drafter)(self.shape.length)
        if draft is None:
            return None
        match self.shape:
            case ChainShape(length) if self.options.adaptive:
                return AdaptiveChainBuilder(draft, length, self.mode)
            case ChainShape(length):
                return ChainBuilder(draft, length, self.mode)
            case DynamicShape(width, depth, num_tokens):
                return TreeBuilder(draft, width, depth, num_tokens, self.mode)
            case StaticShape(parents):
                return StaticTreeBuilder(draft, parents, self.mode)


def _is_model_free(options: DraftingOptions) -> bool:
    return options.drafter in registry.names(registry.DRAFTERS)


def _is_chain(shape: DraftShape) -> bool:
    match shape:
        case ChainShape():
            return True
        case DynamicShape():
            return False
        case StaticShape():
            return shape.is_chain


def _check_drafter(problems: Problems, options: DraftingOptions, has_draft: bool, explicit: bool) -> None:
    name = options.drafter
    asks_tree = options.tree is not None or options.tree_width != 1 or options.tree_depth is not None
    if name not in drafter_names():
        problems.add(f"drafter '{name}' is not known; known are: {', '.join(drafter_names())}")
        return
    model_free = _is_model_free(options)
    if model_free:
        if explicit and has_draft:
            problems.add(f"drafter {name} drafts without a model, but a draft is given; leave one of them out")
        if asks_tree:
            problems.add(f"drafter {name} proposes chains only; leave the tree out, or name a draft model")
        if options.proposal != AUTO:
            problems.add(
                f"drafter {name} has no distribution to draft {options.proposal} tokens from; leave proposal out"
            )
    elif name != AUTO and not has_draft:
        problems.add(f"drafter {name} needs a draft, but none is given; name its directory (draft=, --draft)")
    nothing = options.drafts_nothing or not (model_free or has_draft)
    if options.adaptive and (asks_tree or model_free or nothing):
        problems.add(
            "adaptive lengths are for chains of a draft model; leave adaptive out, or the tree and the drafter"
        )
    if nothing and (asks_tree or options.proposal != AUTO):
        problems.add("a tree or a kind of proposal is asked, but nothing drafts; leave it out, or name a draft")
    if nothing or model_free:
        if options.hot_tokens is not None:
            problems.add(
                "hot tokens are given, but no draft model runs whose head they could cut; leave them out, or name a draft"
            )
        if options.taps is not None or options.tap_convention is not None:
            problems.add("taps are given, but no draft model runs that is fed them; leave them out, or name a draft")


def _mode(
    problems: Problems, options: DraftingOptions, shape: DraftShape, verifier: VerifierChoice | None
) -> ProposalMode:
    """How tokens are drafted: as asked, else what suits the verifier and the tree."""
    wanted = options.proposal
    if wanted != AUTO:
        if wanted == ProposalMode.SAMPLED.value and isinstance(shape, DynamicShape):
            problems.add(
                "proposal sampled with a dynamic tree: it keeps its best candidates, so they cannot be drawn without "
                "changing the output; draft greedy or coupled ones, or give a fixed tree"
            )
        return ProposalMode(wanted)
    suited = ProposalMode.COUPLED if verifier is None else ProposalMode(verifier.proposal)
    # One-hot drafts are accepted with p(x): the most probable ones most often.
    return ProposalMode.GREEDY if suited is ProposalMode.SAMPLED and isinstance(shape, DynamicShape) else suited
