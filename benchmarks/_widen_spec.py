"""What a widened pair is to be like: `WidenSpec`, and what of it a given small pair can be embedded in."""

from __future__ import annotations

from attrs import evolve, frozen

from outrider.checkpoint import Checkpoint, Config
from outrider.errors import ConfigurationError, Problems

__all__ = ["LLAMA_8B", "SmallPair", "StackSizes", "WidenSpec"]


@frozen
class StackSizes:
    """Sizes of one transformer. ``vocab`` is what its head speaks of: the draft vocabulary in a draft."""

    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int

    @classmethod
    def read(cls, config: Config, vocab_key: str) -> StackSizes:
        """The sizes in a ``config.json`` in the terms of Hugging Face's Llama."""
        hidden, heads = config.get_int("hidden_size"), config.get_int("num_attention_heads")
        return cls(
            hidden=hidden,
            layers=config.get_int("num_hidden_layers"),
            q_heads=heads,
            kv_heads=config.get_int("num_key_value_heads", heads),
            head_dim=config.get_int("head_dim", hidden // heads),
            ffn=config.get_int("intermediate_size"),
            vocab=config.get_int(vocab_key),
        )

    @property
    def group(self) -> int:
        """Query heads that share a kv head."""
        return self.q_heads // self.kv_heads


@frozen
class SmallPair:
    """The trained pair to be widened: checkpoints, sizes, and the target boundaries that the draft is fed."""

    target_files: Checkpoint
    draft_files: Checkpoint
    target: StackSizes
    draft: StackSizes
    taps: tuple[int, ...]

    @classmethod
    def read(cls, target: Checkpoint, draft: Checkpoint) -> SmallPair:
        """The pair in two directories, of which no weight is read.

        Raises:
            CheckpointError: a size is missing in a config, or the draft does not name its taps.
        """
        eagle = draft.config.section("eagle_config") or Config(f"{draft.config.where}: eagle_config", {})
        return cls(
            target,
            draft,
            StackSizes.read(target.config, "vocab_size"),
            StackSizes.read(draft.config, "draft_vocab_size"),
            eagle.get_ints("eagle_aux_hidden_state_layer_ids") or (),
        )


@frozen
class WidenSpec:
    """Sizes of a widened target and of its EAGLE-3 draft, which has the target's heads and width."""

    name: str
    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    draft_vocab: int
    draft_ffn: int

    @property
    def target(self) -> StackSizes:
        """Sizes of the target."""
        return StackSizes(
            self.hidden, self.layers, self.q_heads, self.kv_heads, self.head_dim, self.ffn, vocab=self.vocab
        )

    @property
    def draft(self) -> StackSizes:
        """Sizes of the draft."""
        return evolve(self.target, layers=1, ffn=self.draft_ffn, vocab=self.draft_vocab)

    def positions(self, num_layers: int) -> tuple[int, ...]:
        """Where the ``num_layers`` real layers stand among all: spread evenly, the first one first."""
        return tuple(index * self.layers // num_layers for index in range(num_layers))

    def boundary(self, small: int, num_layers: int) -> int:
        """The boundary of the widened target that holds the residual stream at boundary ``small`` of the real one.

        It is the one just before the next real layer, which every identity layer in between leaves as it is.
        """
        return self.layers if small == num_layers else self.positions(num_layers)[small]

    def check(self, small: SmallPair) -> None:
        """Do nothing where ``small`` can be embedded without a change of function.

        Raises:
            ConfigurationError: it cannot, with every reason.
        """
        with Problems(f"'{self.name}' cannot hold the pair", ConfigurationError) as problems:
            _check_stack("target", self.target, small.target, problems)
            _check_stack("draft", self.draft, small.draft, problems)
            if self.draft_vocab > self.vocab:
                problems.add(
                    f"draft_vocab {self.draft_vocab} is above vocab {self.vocab}; each draft id is another target id"
                )
            if not small.taps:
                problems.add("the draft names no taps (eagle_aux_hidden_state_layer_ids), which widening must move")
            outside = [tap for tap in small.taps if not 0 <= tap <= small.target.layers]
            if outside:
                problems.add(f"the draft is fed boundaries {outside}, the target has 0 to {small.target.layers}")
            for what, files in (("target", small.target_files), ("draft", small.draft_files)):
                _check_rope(what, files.config, problems)


LLAMA_8B = WidenSpec(
    name="llama-8b",
    hidden=4096,
    layers=32,
    q_heads=32,
    kv_heads=8,
    head_dim=128,
    ffn=14336,
    vocab=128256,
    draft_vocab=32000,
    draft_ffn=14336,
)
"""The sizes of Llama-3.1-8B and of the EAGLE-3 head that its authors published for it."""


def _check_stack(what: str, wide: StackSizes, small: StackSizes, problems: Problems) -> None:
    for name, asked, least in (
        ("hidden", wide.hidden, small.hidden),
        ("layers", wide.layers, small.layers),
        ("kv_heads", wide.kv_heads, small.kv_heads),
        ("ffn", wide.ffn, small.ffn),
        ("vocab", wide.vocab, small.vocab),
    ):
        if asked < least:
            problems.add(f"{what}: {name} {asked} is below the pair's {least}; ask for at least as much")
    if wide.kv_heads < 1 or wide.q_heads % wide.kv_heads:
        problems.add(f"{what}: {wide.q_heads} query heads over {wide.kv_heads} kv heads; they must be a multiple")
    elif wide.group < small.group:
        problems.add(
            f"{what}: {wide.group} query heads share a kv head, {small.group} do in the pair, and those must go on "
            f"sharing; ask for at least {small.group} times the kv heads"
        )
    if wide.head_dim < 1 or wide.head_dim % small.head_dim:
        problems.add(
            f"{what}: head_dim {wide.head_dim} is no multiple of the pair's {small.head_dim}, so it lacks some of its "
            "rotary frequencies; ask for a multiple"
        )


def _check_rope(what: str, config: Config, problems: Problems) -> None:
    for key in ("rope_parameters", "rope_scaling"):
        section = config.section(key)
        kind = "default" if section is None else section.get_str("rope_type", section.get_str("type", "default"))
        if kind != "default":
            problems.add(f"{what}: rope is {kind}; only frequencies theta^(-2i/D) have a place in a wider head")
