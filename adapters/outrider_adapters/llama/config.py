"""`LlamaConfig`: the config files of a Llama-family checkpoint, read and checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from attrs import frozen

from outrider.checkpoint import Config
from outrider.errors import CheckpointError, Problems
from outrider.types import AttentionSpec, RopeSpec
from outrider_adapters.llama.families import FAMILIES, Family, Flag, find_family
from outrider_adapters.nn import extended_positions, read_activation, read_rope

__all__ = ["FAMILIES", "Family", "LlamaConfig", "find_family", "read_config"]

_T = TypeVar("_T")

_DTYPES: Mapping[str, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
}

_FEWEST_POSITIONS = 2
_DEFAULT_WINDOW = 4096
_DEFAULT_FULL_LAYERS = 28
"""``sliding_window`` and ``max_window_layers`` of configs that do not mention them."""


@frozen
class LlamaConfig:
    """Sizes and switches of one model. ``dtype`` is ``None`` where the config is silent; ``notes`` explain choices."""

    family: Family
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    layers: tuple[AttentionSpec, ...]
    rms_norm_eps: float
    activation: str
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    rope: RopeSpec
    max_positions: int
    tied: bool
    dtype: torch.dtype | None
    eos_ids: tuple[int, ...]
    notes: tuple[str, ...]


def read_config(
    config: Config, generation: Config | None, num_stored_layers: int, family: Family | None = None
) -> LlamaConfig:
    """The model that ``config.json`` and ``generation_config.json`` describe, with the layers the tensors hold.

    ``family``: what it is, where that is known; else the config's architecture says it.

    Raises:
        CheckpointError: missing or impossible values, a quantized model, an unknown activation or rope; all at once.
    """
    with Problems(f"{config.where} does not describe a usable model", CheckpointError) as problems:
        return _Reading(config, generation, num_stored_layers, problems).read(family)


class _Reading:
    """One pass over a config that notes every fault and goes on with a stand-in."""

    def __init__(self, config: Config, generation: Config | None, num_stored_layers: int, problems: Problems) -> None:
        self._config = config
        self._generation = generation
        self._num_stored_layers = num_stored_layers
        self._problems = problems
        self._notes: list[str] = []

    def read(self, family: Family | None) -> LlamaConfig:
        config = self._config
        family = family or find_family(config.get_strs("architectures"), config.get_optional_str("model_type"))
        if family is None:
            self._problems.add(f"the architecture is not one of {', '.join(FAMILIES)}")
            family = FAMILIES["LlamaForCausalLM"]
        if config.has("quantization_config"):
            method = self._try(self._quantization_method, "unknown")
            self._problems.add(
                f"the weights are quantized (quantization_config, method {method}), expected plain float weights; "
                "use the unquantized checkpoint"
            )
        hidden = self._size("hidden_size")
        num_heads = self._size("num_attention_heads")
        head_dim = self._head_dim(family, hidden, num_heads)
        num_kv_heads = self._num_kv_heads(family, num_heads)
        if num_heads % num_kv_heads:
            self._problems.add(f"{num_heads} query heads are not a multiple of {num_kv_heads} key-value heads")
        num_positions = self._try(
            lambda: config.get_int("max_position_embeddings", family.max_positions), _FEWEST_POSITIONS
        )
        if num_positions < _FEWEST_POSITIONS:
            self._problems.add(
                f"{config.where}: 'max_position_embeddings' is {num_positions}, expected at least {_FEWEST_POSITIONS}: a "
                "token of the prompt and one of the answer"
            )
        rope = self._try(lambda: read_rope(config, head_dim, num_positions), RopeSpec("default", 10000.0, head_dim))
        max_positions = extended_positions(rope, num_positions)
        if max_positions != num_positions:
            self._notes.append(
                f"{rope.kind} rope stretches the context by {rope.factor:g}, from max_position_embeddings "
                f"{num_positions} to {max_positions} positions"
            )
        attention_bias = self._try(lambda: config.get_bool("attention_bias", False), False)
        mlp_bias = self._try(lambda: config.get_bool("mlp_bias", False), False)
        vocab_size = self._size("vocab_size")
        return LlamaConfig(
            family=family,
            hidden_size=hidden,
            intermediate_size=self._size("intermediate_size"),
            vocab_size=vocab_size,
            layers=tuple(
                AttentionSpec(num_heads, num_kv_heads, head_dim, head_dim**-0.5, window)
                for window in self._windows(family, self._num_layers())
            ),
            rms_norm_eps=self._rms_norm_eps(),
            activation=self._try(lambda: read_activation(config), "silu"),
            qkv_bias=_resolve(family.qkv_bias, attention_bias),
            o_bias=_resolve(family.o_bias, attention_bias),
            mlp_bias=_resolve(family.mlp_bias, mlp_bias),
            rope=rope,
            max_positions=max_positions,
            tied=self._try(lambda: config.get_bool("tie_word_embeddings", False), False),
            dtype=self._try(self._dtype, None),
            eos_ids=self._try(lambda: self._eos_ids(vocab_size), ()),
            notes=tuple(self._notes),
        )

    def _try(self, read: Callable[[], _T], stand_in: _T) -> _T:
        try:
            return read()
        except CheckpointError as error:
            self._problems.add(str(error))
            return stand_in

    def _size(self, key: str) -> int:
        size = self._try(lambda: self._config.get_int(key), 1)
        if size < 1:
            self._problems.add(f"{self._config.where}: '{key}' is {size}, expected a number above 0")
        return max(size, 1)

    def _rms_norm_eps(self) -> float:
        eps = self._try(lambda: self._config.get_float("rms_norm_eps", 1e-6), 1e-6)
        if not 0 <= eps < math.inf:
            self._problems.add(f"{self._config.where}: 'rms_norm_eps' is {eps}, expected a number from 0")
            return 1e-6
        return eps

    def _quantization_method(self) -> str:
        section = self._config.section("quantization_config")
        return "unknown" if section is None else section.get_str("quant_method", "unknown")

    def _head_dim(self, family: Family, hidden_size: int, num_heads: int) -> int:
        said = self._try(lambda: self._config.get_optional_int("head_dim"), None) or family.head_dim
        if said is None and hidden_size % num_heads:
            self._problems.add(
                f"hidden_size {hidden_size} is not a multiple of {num_heads} heads and head_dim is absent"
            )
        return max(said or hidden_size // num_heads, 1)

    def _num_kv_heads(self, family: Family, num_heads: int) -> int:
        if "num_key_value_heads" not in self._config.values:
            return family.num_kv_heads or num_heads
        return self._size("num_key_value_heads") if self._config.has("num_key_value_heads") else num_heads

    def _num_layers(self) -> int:
        said = self._try(lambda: self._config.get_optional_int("num_hidden_layers"), None)
        if said is not None and said != self._num_stored_layers:
            self._notes.append(
                f"config.json says num_hidden_layers {said}, the tensors hold {self._num_stored_layers} layers; "
                "the tensors are followed"
            )
        return self._num_stored_layers

    def _windows(self, family: Family, num_layers: int) -> tuple[int | None, ...]:
        """Positions each layer's queries see. transformers masks ``key ≤ query − window``, so the query itself counts."""
        config = self._config
        # Absent means the default of the config class, null means no window.
        window = self._try(lambda: config.get_optional_int("sliding_window"), None)
        if family.window == "none":
            if window is not None:
                self._notes.append(f"sliding_window {window} is ignored, {family.architecture} has none")
            return (None,) * num_layers
        if "sliding_window" not in config.values:
            window = _DEFAULT_WINDOW
        if window is not None and window < 1:
            self._problems.add(f"{config.where}: 'sliding_window' is {window}, expected a number above 0 or null")
        if family.window == "every layer":
            if config.has("layer_types"):
                self._notes.append(f"layer_types is ignored, {family.architecture} has the same attention everywhere")
            return (window,) * num_layers
        if not self._try(lambda: config.get_bool("use_sliding_window", False), False):
            window = None
        no_kinds: tuple[str, ...] = ()
        kinds = self._try(lambda: config.get_strs("layer_types"), no_kinds)
        if not kinds:
            full = self._try(lambda: config.get_int("max_window_layers", _DEFAULT_FULL_LAYERS), 0)
            return tuple(window if index >= full else None for index in range(num_layers))
        self._check_layer_types(kinds, window, num_layers)
        return tuple(window if kind == "sliding_attention" else None for kind in kinds[:num_layers])

    def _check_layer_types(self, kinds: tuple[str, ...], window: int | None, num_layers: int) -> None:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        where = f"{self._config.where}: 'layer_types'"
        if unknown:
            self._problems.add(f"{where} names {', '.join(unknown)}, allowed are full_attention and sliding_attention")
        if len(kinds) < num_layers:
            self._problems.add(f"{where} names {len(kinds)} layers, the tensors hold {num_layers}")
        if "sliding_attention" in kinds and window is None:
            self._problems.add(
                f"{where} names sliding_attention, but use_sliding_window is not true or sliding_window is null; "
                "set both or name full_attention"
            )

    def _dtype(self) -> torch.dtype | None:
        named = self._config.get_optional_str("dtype") or self._config.get_optional_str("torch_dtype")
        if named is None:
            return None
        dtype = _DTYPES.get(named.removeprefix("torch."))
        if dtype is None:
            raise CheckpointError(f"{self._config.where}: dtype is '{named}', allowed are {', '.join(_DTYPES)}")
        return dtype

    def _eos_ids(self, vocab_size: int) -> tuple[int, ...]:
        """Ids that end a sequence: of generation_config.json where it names any, as generation does, else config.json."""
        own = self._config.get_ints("eos_token_id") or ()
        found = (self._generation.get_ints("eos_token_id") if self._generation else None) or own
        if own and set(own) - set(found):
            self._notes.append(
                f"eos_token_id is {list(found)} in generation_config.json and {list(own)} in config.json; "
                "the former is followed"
            )
        if outside := [token for token in found if not 0 <= token < vocab_size]:
            self._notes.append(f"eos_token_id {outside} is outside the vocabulary of {vocab_size} and never matches")
        return tuple(dict.fromkeys(token for token in found if 0 <= token < vocab_size))


def _resolve(flag: Flag, configured: bool) -> bool:
    return configured if flag == "config" else flag == "always"
