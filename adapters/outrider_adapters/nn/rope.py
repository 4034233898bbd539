"""Rotary position embedding: `read_rope` reads it from a config, `Rope` gives the rotation of each row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

from outrider.checkpoint import Config
from outrider.errors import CheckpointError, ConfigurationError
from outrider.types import RopeKind, RopeSpec

__all__ = ["Rope", "extended_positions", "read_rope", "rotate"]

_KINDS: Mapping[str, RopeKind] = {
    "default": "default",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
}

_TABLE_BYTES = 64 * 2**20
"""Largest table kept; longer contexts compute their rotations in each pass instead."""


def read_rope(config: Config, head_dim: int, max_positions: int, default_theta: float = 10000.0) -> RopeSpec:
    """The rope that ``config`` asks for, in any of the spellings in use.

    Reads ``rope_theta`` with ``rope_scaling`` (``type`` or ``rope_type``), or ``rope_parameters``. ``max_positions``
    is the config's ``max_position_embeddings``; it stands in for a missing ``original_max_position_embeddings``.

    Raises:
        CheckpointError: an unknown type, a missing or impossible value, or two sections that differ.
    """
    scaling, parameters = config.section("rope_scaling"), config.section("rope_parameters")
    if scaling and parameters and scaling.values and parameters.values and scaling.values != parameters.values:
        raise CheckpointError(f"{config.where}: 'rope_scaling' and 'rope_parameters' differ; keep one")
    section = scaling if scaling and scaling.values else parameters
    rope = section or Config(config.where, {})
    if any(isinstance(value, dict) for value in rope.values.values()):
        raise CheckpointError(f"{rope.where}: a rope for each layer type was found, expected one for all layers")
    kind = _read_kind(rope)
    factor = rope.get_optional_float("partial_rotary_factor")
    partial = factor if factor is not None else config.get_float("partial_rotary_factor", 1.0)
    theta = rope.get_optional_float("rope_theta")
    if theta is None:
        theta = config.get_float("rope_theta", default_theta)
    if not 1 < theta < math.inf:
        raise CheckpointError(f"{rope.where}: 'rope_theta' is {theta:g}, expected a number above 1")
    rotary_dim = int(head_dim * partial)
    if not 0 < rotary_dim <= head_dim or rotary_dim % 2:
        raise CheckpointError(
            f"{rope.where}: {rotary_dim} of {head_dim} head dimensions would be rotated (partial_rotary_factor "
            f"{partial:g}), expected an even number from 2 to {head_dim}"
        )
    original = None
    if kind in ("llama3", "yarn"):
        original = config.get_optional_int("original_max_position_embeddings")
        if original is None:
            original = rope.get_int("original_max_position_embeddings", max_positions)
        if original < 1:
            raise CheckpointError(
                f"{rope.where}: 'original_max_position_embeddings' is {original}, expected a number above 0"
            )
    elif kind == "dynamic":
        original = max_positions
    return RopeSpec(
        kind=kind,
        theta=theta,
        rotary_dim=rotary_dim,
        factor=_read_factor(rope, kind, max_positions, original),
        original_max_positions=original,
        low_freq_factor=rope.get_float("low_freq_factor") if kind == "llama3" else None,
        high_freq_factor=rope.get_float("high_freq_factor") if kind == "llama3" else None,
        attention_factor=rope.get_optional_float("attention_factor") if kind == "yarn" else None,
        beta_fast=rope.get_float("beta_fast", 32.0) or 32.0,
        beta_slow=rope.get_float("beta_slow", 1.0) or 1.0,
        mscale=rope.get_optional_float("mscale"),
        mscale_all_dim=rope.get_optional_float("mscale_all_dim"),
        truncate=rope.get_bool("truncate", True),
        sections=_read_sections(rope, rotary_dim),
    )


def _read_kind(rope: Config) -> RopeKind:
    named = rope.get_optional_str("rope_type") or rope.get_str("type", "default")
    if named == "mrope" and rope.has("mrope_section"):
        return "default"
    kind = _KINDS.get(named)
    if kind is None:
        raise CheckpointError(f"{rope.where}: rope type '{named}' is unknown, allowed are {', '.join(_KINDS)}")
    return kind


def _read_factor(rope: Config, kind: RopeKind, max_positions: int, original: int | None) -> float:
    if kind == "default":
        return 1.0
    if kind == "yarn" and original is not None and not rope.has("factor"):
        return max_positions / original
    factor = rope.get_float("factor")
    if not 0 < factor < math.inf:
        raise CheckpointError(f"{rope.where}: 'factor' is {factor:g}, expected a number above 0")
    return factor


def _read_sections(rope: Config, rotary_dim: int) -> tuple[int, ...] | None:
    sections = rope.get_ints("mrope_section")
    if sections is None:
        return None
    if rope.get_bool("mrope_interleaved", False):
        raise CheckpointError(f"{rope.where}: 'mrope_interleaved' is true, expected axes in consecutive sections")
    if len(sections) != 3 or sum(sections) != rotary_dim // 2:
        raise CheckpointError(
            f"{rope.where}: 'mrope_section' is {list(sections)}, expected 3 numbers that sum to {rotary_dim // 2}"
        )
    return sections


def extended_positions(spec: RopeSpec, max_positions: int) -> int:
    """Positions that rope serves: ``max_positions``, or more where dynamic NTK or YaRN stretch the original length."""
    if spec.kind in ("dynamic", "yarn") and spec.original_max_positions is not None:
        return max(max_positions, int(spec.original_max_positions * spec.factor))
    return max_positions


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Fresh ``[T, heads, head_dim]``: heads ``x`` with their first ``rotary_dim`` dimensions rotated.

    ``cos`` and signed ``sin`` are `Rope.rotation`'s. ``x`` may be any view and is left as it is. Device only.
    """
    rotary_dim = cos.shape[-1]
    if rotary_dim == x.shape[-1]:
        # x·cos + rotate_half(x)·sin, where the minus of rotate_half is in the signed sine.
        return torch.addcmul(x * cos, x.roll(rotary_dim // 2, -1), sin)
    head = x[..., :rotary_dim]
    turned = torch.addcmul(head * cos, head.roll(rotary_dim // 2, -1), sin)
    return torch.cat((turned, x[..., rotary_dim:]), dim=-1)


class Rope:
    """Cosines and signed sines by position, computed in float32 and cast to the model's dtype, as transformers does."""

    def __init__(self, spec: RopeSpec, max_positions: int, device: torch.device, dtype: torch.dtype) -> None:
        """Prepare for positions below ``max_positions`` on ``device``; keeps at most 64 MiB of tables."""
        self.spec = spec
        self._dtype = dtype
        self._size = spec.rotary_dim
        self._scale = _attention_scale(spec)
        exponents = torch.arange(0, spec.rotary_dim, 2, dtype=torch.float32) / spec.rotary_dim
        # The sine is odd and the cosine even, so negating the first half of the frequencies signs the sine for free.
        sign = torch.ones(spec.rotary_dim)
        sign[: spec.rotary_dim // 2] = -1.0
        self._sign = sign.to(device)
        self._exponents = exponents.repeat(2).to(device)
        self._frequencies = (_frequencies(spec, exponents).repeat(2) * sign).to(device)
        self._axis_of: Tensor | None = None
        if spec.sections is not None:
            axes = torch.repeat_interleave(torch.arange(len(spec.sections)), torch.tensor(spec.sections))
            self._axis_of = axes.repeat(2).to(device)
        self._table: Tensor | None = None
        self._last = max_positions - 1
        row_bytes = 2 * spec.rotary_dim * dtype.itemsize
        fits = spec.kind != "dynamic" and spec.sections is None and max_positions * row_bytes <= _TABLE_BYTES
        # Arithmetic on meta tensors imports PyTorch's compiler, half a second that a rehearsal of loading need not pay.
        if fits and device.type != "meta":
            self._table = torch.cat(self._compute(torch.arange(max_positions, device=device), None), dim=-1)

    def rotation(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """``(cos, sin)``, each ``[T, 1, rotary_dim]`` in the model's dtype, for all layers of one pass.

        ``positions [T]`` int64, or ``[3, T]`` where the spec has sections; positions outside the table (padding rows)
        are clamped into it. ``lengths [T]`` int64, needed by dynamic NTK alone: the length of the sequence each token
        was encoded with. Device only, safe in a capture; the results are fresh.

        Raises:
            ConfigurationError: dynamic NTK rope without ``lengths``.

        Source: Su et al. 2021, equation 34.
        """
        if self._table is None:
            return self._compute(positions, lengths)
        rows = self._table.index_select(0, positions.clamp(0, self._last))
        return rows.narrow(-1, 0, self._size), rows.narrow(-1, self._size, self._size)

    def _compute(self, positions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        if self._axis_of is not None and positions.dim() == 2:
            by_frequency = positions.index_select(0, self._axis_of).t().unsqueeze(1)
        else:
            by_frequency = positions.view(-1, 1, 1)
        angles = by_frequency * (self._frequencies if self.spec.kind != "dynamic" else self._dynamic(lengths))
        cos, sin = angles.cos(), angles.sin_()
        if self._scale != 1.0:
            cos, sin = cos.mul_(self._scale), sin.mul_(self._scale)
        return cos.to(self._dtype), sin.to(self._dtype)

    def _dynamic(self, lengths: Tensor | None) -> Tensor:
        """Signed frequencies ``[T, 1, rotary_dim]`` for sequences of ``lengths``."""
        spec = self.spec
        if lengths is None or spec.original_max_positions is None:
            raise ConfigurationError(
                "dynamic NTK rope was run without StackInputs.lengths; a loop must give the length of the sequence "
                "each token is encoded with when PositionScheme.needs_lengths says so"
            )
        seen = lengths.clamp(min=spec.original_max_positions).view(-1, 1, 1)
        stretch = (spec.factor * seen / spec.original_max_positions) - (spec.factor - 1)
        base = spec.theta * stretch ** (spec.rotary_dim / (spec.rotary_dim - 2))
        return self._sign / base**self._exponents


def _attention_scale(spec: RopeSpec) -> float:
    """What cos and sin are multiplied with. Source: Peng et al. 2023 (YaRN), equation 22, with DeepSeek's mscale."""
    if spec.kind != "yarn":
        return 1.0
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return _mscale(spec.factor, spec.mscale) / _mscale(spec.factor, spec.mscale_all_dim)
    return _mscale(spec.factor, 1.0)


def _mscale(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0


def _frequencies(spec: RopeSpec, exponents: Tensor) -> Tensor:
    """Inverse frequencies ``[rotary_dim / 2]`` float32 of every kind whose frequencies are constant."""
    plain = 1.0 / spec.theta**exponents
    if spec.kind == "linear":
        return plain / spec.factor
    if spec.kind == "llama3":
        return _llama3(spec, plain)
    if spec.kind == "yarn":
        return _yarn(spec, plain, 1.0 / (spec.factor * spec.theta**exponents))
    return plain


def _llama3(spec: RopeSpec, plain: Tensor) -> Tensor:
    low, high = cast("float", spec.low_freq_factor), cast("float", spec.high_freq_factor)
    length = cast("int", spec.original_max_positions)
    wavelengths = 2 * math.pi / plain
    slowed = torch.where(wavelengths > length / low, plain / spec.factor, plain)
    smooth = (length / wavelengths - low) / (high - low)
    blended = (1 - smooth) * slowed / spec.factor + smooth * slowed
    between = (wavelengths >= length / high) & (wavelengths <= length / low)
    return torch.where(between, blended, slowed)


def _yarn(spec: RopeSpec, plain: Tensor, interpolated: Tensor) -> Tensor:
    """Interpolated where a dimension turns slowly, untouched where it turns fast, a ramp between.

    Source: Peng et al. 2023 (YaRN), section 3.2.
    """

    def dimension(rotations: float) -> float:
        length = cast("int", spec.original_max_positions)
        return spec.rotary_dim * math.log(length / (rotations * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, spec.rotary_dim - 1)
    width = high - low if high != low else 0.001
    ramp = ((torch.arange(spec.rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return interpolated * ramp + plain * (1 - ramp)
