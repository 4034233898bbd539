"""Sizes of a draft's decoder layers, and what each layer's tensors say about its form."""

from __future__ import annotations

from attrs import frozen

from outrider.errors import CheckpointError, Problems
from outrider.types import AttentionSpec, RopeSpec
from outrider_adapters.eagle.names import TensorPlan
from outrider_adapters.eagle.settings import Settings
from outrider_adapters.nn import read_activation, read_rope

__all__ = ["DecoderSizes", "LayerForm", "count_layers", "plan_layer", "read_decoder"]

_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters")
# Drafts are trained without frequency scaling unless they say so: absent means 10000, never the target's base.
_DEFAULT_THETA = 10000.0
_DEFAULT_THETA_NOTE = "rope theta 10000: config.json names none, and the target's is not the draft's"


@frozen
class DecoderSizes:
    """What config.json says about a draft's transformer; ``num_layers`` is checked against the tensors later."""

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    num_layers: int
    max_positions: int
    eps: float
    hidden_act: str
    rope: RopeSpec
    windows: tuple[int | None, ...]
    """Sliding window per layer of the config; layers past it have none."""
    notes: tuple[str, ...] = ()

    @property
    def query_width(self) -> int:
        """Columns of all query heads; may differ from ``hidden_size``."""
        return self.num_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Columns of all key heads."""
        return self.num_kv_heads * self.head_dim

    def attention(self, layer: int) -> AttentionSpec:
        """Attention of layer ``layer``."""
        window = self.windows[layer] if layer < len(self.windows) else None
        return AttentionSpec(self.num_heads, self.num_kv_heads, self.head_dim, self.head_dim**-0.5, window)


@frozen
class LayerForm:
    """What one decoder layer is made of.

    ``joined``: its attention takes ``cat[norm(embed), norm(hidden)]``, 2H wide. ``norm``: the norm before attention of
    a layer that is not joined, or ``None`` where it has none (EAGLE-1's first).
    """

    index: int
    joined: bool
    norm: str | None
    input_width: int
    qkv_bias: bool
    output_bias: bool
    qk_norm: bool
    mlp_bias: bool

    @property
    def prefix(self) -> str:
        """Canonical prefix of its tensors."""
        return f"layers.{self.index}."


def read_decoder(settings: Settings, problems: Problems) -> DecoderSizes | None:
    """Sizes by config.json; ``None``, with the reasons noted, where they are too broken to go on."""
    known = len(problems)
    hidden, heads = settings.size("hidden_size"), settings.size("num_attention_heads")
    kv_heads = settings.size("num_key_value_heads", default=heads)
    intermediate, vocab = settings.size("intermediate_size"), settings.size("vocab_size")
    max_positions = settings.size("max_position_embeddings", default=2048)
    head_dim = settings.size("head_dim", default=max(hidden // heads, 1))
    if heads % kv_heads:
        problems.add(f"{heads} query heads cannot share {kv_heads} key-value heads; the former must be a multiple")
    if settings.root.has("quantization_config") or settings.model.has("quantization_config"):
        problems.add("the weights are quantized ('quantization_config'); drafts are loaded in floating point only")
    if len(problems) > known:
        return None
    nested = any(settings.model.has(key) for key in _ROPE_KEYS)
    declared = nested or any(settings.root.has(key) for key in _ROPE_KEYS)
    section = settings.model if nested else settings.root
    try:
        rope = read_rope(section, head_dim, max_positions, _DEFAULT_THETA)
        hidden_act = read_activation(settings.model)
        windows = _windows(settings)
    except CheckpointError as error:
        problems.add(str(error))
        return None
    return DecoderSizes(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        num_layers=settings.size("num_hidden_layers", default=1),
        max_positions=max_positions,
        eps=settings.number("rms_norm_eps", 1e-6),
        hidden_act=hidden_act,
        rope=rope,
        windows=windows,
        notes=() if declared else (_DEFAULT_THETA_NOTE,),
    )


def _windows(settings: Settings) -> tuple[int | None, ...]:
    kinds = settings.model.get_strs("layer_types")
    window = settings.model.get_optional_int("sliding_window")
    unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
    if unknown:
        raise CheckpointError(
            f"'layer_types' names {', '.join(unknown)}; a draft's layers are full_attention or sliding_attention"
        )
    if "sliding_attention" in kinds and window is None:
        raise CheckpointError("'layer_types' names sliding_attention, but 'sliding_window' is missing")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def count_layers(tensors: TensorPlan, sizes: DecoderSizes, problems: Problems, notes: list[str]) -> int:
    """Number of decoder layers by the tensors, which win over config.json."""
    indices = tensors.layer_indices()
    count = len(indices)
    if indices != tuple(range(count)):
        problems.add(f"the tensors hold layers {list(indices)}, expected 0 to {count - 1} without a gap")
    if not count:
        problems.add("the tensors hold no decoder layer (midlayer.*, midlayer.0.* or layers.0.*)")
    elif count != sizes.num_layers:
        notes.append(
            f"{count} decoder layers: config.json says num_hidden_layers {sizes.num_layers}, the tensors hold {count}; "
            "the tensors win"
        )
    return count


def plan_layer(
    tensors: TensorPlan, sizes: DecoderSizes, index: int, joined: bool, norms: tuple[str, ...], flags: Settings
) -> LayerForm:
    """Count on the tensors of decoder layer ``index``; ``norms`` are the names its input norm may have."""
    prefix, hidden = f"layers.{index}.", sizes.hidden_size
    width = 2 * hidden if joined else hidden
    qkv_bias = _plan_qkv(tensors, sizes, prefix, width, flags)
    attention = f"{prefix}self_attn."
    tensors.need(f"{attention}o_proj.weight", (hidden, sizes.query_width), "hidden_size rows, heads x head_dim columns")
    output_bias = tensors.take(f"{attention}o_proj.bias", (hidden,), "hidden_size")
    qk_norm = tensors.has(f"{attention}q_norm.weight") or tensors.has(f"{attention}k_norm.weight")
    if qk_norm:
        tensors.need(f"{attention}q_norm.weight", (sizes.head_dim,), "head_dim")
        tensors.need(f"{attention}k_norm.weight", (sizes.head_dim,), "head_dim")
    mlp_bias = _plan_mlp(tensors, sizes, prefix)
    tensors.need(f"{prefix}post_attention_layernorm.weight", (hidden,), "hidden_size")
    norm: str | None = None
    if joined:
        tensors.need(f"{prefix}input_layernorm.weight", (hidden,), "norm of the embedding")
        tensors.need(f"{prefix}hidden_norm.weight", (hidden,), "norm of the hidden state")
    elif norms:
        norm = next((name for name in norms if tensors.has(f"{prefix}{name}.weight")), norms[0])
        tensors.need(f"{prefix}{norm}.weight", (hidden,), "norm before attention")
    return LayerForm(index, joined, norm, width, qkv_bias, output_bias, qk_norm, mlp_bias)


def _plan_qkv(tensors: TensorPlan, sizes: DecoderSizes, prefix: str, width: int, flags: Settings) -> bool:
    attention, query, key = f"{prefix}self_attn.", sizes.query_width, sizes.key_width
    rows = [("q_proj", query), ("k_proj", key), ("v_proj", key)]
    if tensors.has(f"{attention}qkv_proj.weight"):
        rows = [("qkv_proj", query + 2 * key)]
    kind = "hidden_size columns" if width == sizes.hidden_size else "2 x hidden_size columns"
    for name, size in rows:
        tensors.need(f"{attention}{name}.weight", (size, width), f"heads x head_dim {sizes.head_dim} rows, {kind}")
    present = any(tensors.has(f"{attention}{name}.bias") for name, _ in rows)
    qkv_bias = flags.flag("qkv_bias")
    declared = qkv_bias if qkv_bias is not None else flags.flag("attention_bias")
    # Qwen2-style drafts carry biases without saying so; only an explicit word can contradict the tensors. An explicit
    # "no" leaves the biases unused, which is refused.
    biased = present if declared is None else declared
    if biased:
        for name, size in rows:
            tensors.need(f"{attention}{name}.bias", (size,), "attention bias, heads x head_dim")
    return biased


def _plan_mlp(tensors: TensorPlan, sizes: DecoderSizes, prefix: str) -> bool:
    mlp, hidden, inner = f"{prefix}mlp.", sizes.hidden_size, sizes.intermediate_size
    gates = [("gate_proj", inner), ("up_proj", inner)]
    if tensors.has(f"{mlp}gate_up_proj.weight"):
        gates = [("gate_up_proj", 2 * inner)]
    biased = any(tensors.has(f"{mlp}{name}.bias") for name in (*(name for name, _ in gates), "down_proj"))
    for name, size in gates:
        tensors.need(f"{mlp}{name}.weight", (size, hidden), "intermediate_size rows, hidden_size columns")
        if biased:
            tensors.need(f"{mlp}{name}.bias", (size,), "intermediate_size")
    tensors.need(f"{mlp}down_proj.weight", (hidden, inner), "hidden_size rows, intermediate_size columns")
    if biased:
        tensors.need(f"{mlp}down_proj.bias", (hidden,), "hidden_size")
    return biased
