"""Every setting of a request, named once: Python keywords, flags and fields of input lines are made from this table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Never, TypedDict, cast

import attrs
from attrs import field, frozen

from outrider.errors import InputError, Problems
from outrider.generation.fields import option, read_options
from outrider.generation.values import (
    id_lists,
    ids,
    integer,
    items,
    json_object,
    number,
    switch,
    text,
    texts,
    token_bias,
)
from outrider.interfaces import GrammarSpec
from outrider.sampling import check_sampling, check_token_ids
from outrider.text.stops import StopRules
from outrider.types import CaptureHiddenMode, OutputWants, SamplingParams

__all__ = ["RequestSettings", "SettingKeywords"]


class SettingKeywords(TypedDict, total=False):
    """The keywords of `generate`, for type checkers: the fields of `RequestSettings` (a test holds them together)."""

    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    banned_token_ids: Sequence[int]
    allowed_token_ids: Sequence[int] | None
    seed: int
    stop: str | Sequence[str]
    stop_sequences: Sequence[Sequence[int]]
    include_stop: bool
    eos_token_ids: Sequence[int] | None
    ignore_eos: bool
    max_draft_tokens: int | None
    logprobs: int | None
    hidden_states: Literal["null", "last", "full"]
    json_schema: Mapping[str, object] | None
    regex: str | None


@frozen(kw_only=True)
class RequestSettings:
    """What one request asks for. Every field is a keyword of `generate`, a flag of ``outrider generate`` and a field of
    an input line; a line overrides a flag.
    """

    max_new_tokens: int = field(default=128, metadata=option(integer, "Most tokens to generate for a prompt."))
    min_new_tokens: int = field(
        default=0, metadata=option(integer, "No end-of-sequence id before this many tokens; stop strings still end.")
    )
    temperature: float = field(default=0.0, metadata=option(number, "Sampling temperature; 0 is greedy."))
    top_k: int = field(default=0, metadata=option(integer, "Sample from the k most probable tokens; 0 from all."))
    top_p: float = field(
        default=1.0, metadata=option(number, "Sample from the fewest tokens that have this probability together.")
    )
    min_p: float = field(
        default=0.0, metadata=option(number, "Drop tokens less probable than this share of the most probable one.")
    )
    repetition_penalty: float = field(
        default=1.0, metadata=option(number, "Above 1, tokens of prompt and output become less likely.")
    )
    presence_penalty: float = field(
        default=0.0, metadata=option(number, "Taken from the logit of every token of the output.")
    )
    frequency_penalty: float = field(
        default=0.0, metadata=option(number, "Taken from the logit of a token for each time the output holds it.")
    )
    logit_bias: Mapping[int, float] = field(
        factory=dict[int, float], metadata=option(token_bias, "Added to logits, by token id.")
    )
    banned_token_ids: tuple[int, ...] = field(default=(), metadata=option(ids, "Ids that are never generated."))
    allowed_token_ids: tuple[int, ...] | None = field(
        default=None, metadata=option(ids, "Only these ids are generated.", optional=True)
    )
    seed: int = field(default=0, metadata=option(integer, "Seed of the sampling noise; same seed, same text."))
    stop: tuple[str, ...] = field(default=(), metadata=option(texts, "A text that ends the output."))
    stop_sequences: tuple[tuple[int, ...], ...] = field(
        default=(), metadata=option(id_lists, "A list of ids that ends the output.")
    )
    include_stop: bool = field(default=False, metadata=option(switch, "Whether the text keeps what ended it."))
    eos_token_ids: tuple[int, ...] | None = field(
        default=None, metadata=option(ids, "Ids that end the output, in place of the target's own.", optional=True)
    )
    ignore_eos: bool = field(default=False, metadata=option(switch, "Go on past end-of-sequence ids."))
    max_draft_tokens: int | None = field(
        default=None, metadata=option(integer, "Longest draft for this request; 0 drafts nothing.", optional=True)
    )
    logprobs: int | None = field(
        default=None,
        metadata=option(integer, "Give log-probabilities of each token and of the n most probable.", optional=True),
    )
    hidden_states: Literal["null", "last", "full"] = field(
        default="null",
        metadata=option(text, "Final-norm hidden states to give with a completion (Python only).", flag="none"),
    )
    json_schema: Mapping[str, object] | None = field(
        default=None,
        metadata=option(json_object, "JSON schema that the output fulfils.", optional=True, flag="json file"),
    )
    regex: str | None = field(
        default=None, metadata=option(text, "Regular expression that the whole output matches.", optional=True)
    )

    def override(self, values: Mapping[str, object]) -> RequestSettings:
        """These settings with ``values`` (a JSON object) in place of some; unknown names are for the caller to refuse.

        Raises:
            InputError: a value of the wrong type; all at once.
        """
        changes = read_options(RequestSettings, values, "settings", InputError)
        # Every value has been read by its own field's reader, which no type checker can follow through the table.
        return attrs.evolve(self, **cast("dict[str, Never]", changes))

    @classmethod
    def names(cls) -> Sequence[str]:
        """The names of all settings."""
        return [attribute.name for attribute in attrs.fields(cls)]

    def check(self, vocab_size: int | None = None) -> None:
        """Refuse values out of range and combinations that cannot be honoured.

        Raises:
            InputError: all faults at once.
        """
        with Problems("settings", InputError) as problems:
            for name, value, allowed, fits in self._ranges():
                if not fits:
                    problems.add(f"'{name}' is {value}, allowed is {allowed}")
            check_sampling(self.sampling(), vocab_size, problems)
            check_token_ids("eos_token_ids", self.eos_token_ids or (), vocab_size, problems)
            check_token_ids("stop_sequences", items(self.stop_sequences), vocab_size, problems)
            if self.json_schema is not None and self.regex is not None:
                problems.add("'json_schema' and 'regex' are both given; one grammar can hold at a time")
            if self.min_new_tokens and (self.json_schema is not None or self.regex is not None):
                problems.add("'min_new_tokens' with a grammar: a complete text could neither end nor go on; drop one")
            if self.ignore_eos and (self.json_schema is not None or self.regex is not None):
                problems.add("'ignore_eos' with a grammar: a complete text could not end; drop one")
            self._stop_rules(problems)

    def sampling(self) -> SamplingParams:
        """The part that chooses tokens."""
        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            banned_token_ids=self.banned_token_ids,
            allowed_token_ids=self.allowed_token_ids,
            min_new_tokens=self.min_new_tokens,
            seed=self.seed,
        )

    def stops(self) -> StopRules:
        """The part that ends a request by text or by token sequence."""
        return StopRules(self.stop, self.stop_sequences, self.include_stop)

    def wants(self) -> OutputWants:
        """The part that asks for outputs beside tokens."""
        return OutputWants(self.logprobs, CaptureHiddenMode[self.hidden_states.upper()])

    def eos_ids(self) -> tuple[int, ...] | None:
        """Ids that end the request; ``None`` for the target's own."""
        return () if self.ignore_eos else self.eos_token_ids

    def grammar(self) -> GrammarSpec | None:
        """The language of the output, if it is bound to one."""
        if self.json_schema is not None:
            return GrammarSpec.from_json_schema(self.json_schema)
        return None if self.regex is None else GrammarSpec("regex", self.regex)

    def _ranges(self) -> Iterable[tuple[str, object, str, bool]]:
        return (
            ("max_new_tokens", self.max_new_tokens, "1 or more", self.max_new_tokens >= 1),
            (
                "min_new_tokens",
                self.min_new_tokens,
                "0 to max_new_tokens",
                self.min_new_tokens <= max(self.max_new_tokens, 0),
            ),
            ("max_draft_tokens", self.max_draft_tokens, "0 or more", (self.max_draft_tokens or 0) >= 0),
            ("logprobs", self.logprobs, "0 or more", (self.logprobs or 0) >= 0),
            (
                "hidden_states",
                self.hidden_states,
                "null, last or full",
                self.hidden_states.upper() in CaptureHiddenMode.__members__,
            ),
        )

    def _stop_rules(self, problems: Problems) -> None:
        try:
            self.stops()
        except InputError as error:
            problems.add(str(error))
