"""Sets of token ids as bit masks: 32 ids in an int32 word, as `TokenConstraint.fill_mask` writes them."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["num_mask_words", "pack_mask", "unpack_mask"]

_BITS = 32


def num_mask_words(vocab_size: int) -> int:
    """Number of int32 words that hold a bit for each of ``vocab_size`` ids."""
    return -(-vocab_size // _BITS)


def pack_mask(allowed: Tensor) -> Tensor:
    """``[..., ceil(V / 32)]`` int32 bit masks of ``allowed [..., V]`` bool, on its device; a new tensor.

    Bit ``i % 32`` of word ``i // 32`` is ``allowed[..., i]``; bits from V on are 0. No synchronisation.
    """
    vocab_size = allowed.shape[-1]
    num_words = num_mask_words(vocab_size)
    padded = torch.nn.functional.pad(allowed, (0, num_words * _BITS - vocab_size))
    bits = padded.reshape(*allowed.shape[:-1], num_words, _BITS).to(torch.int64)
    words = (bits << torch.arange(_BITS, device=allowed.device)).sum(-1)
    # The upper half of the unsigned range stands for the negative numbers of int32.
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32)


def unpack_mask(words: Tensor, vocab_size: int) -> Tensor:
    """``[..., V]`` bool, true where the bit of ``words [..., ceil(V / 32)]`` int32 is set, on its device; a new tensor.

    Device only, static shapes, no synchronisation, safe in a capture.
    """
    shifts = torch.arange(_BITS, device=words.device, dtype=torch.int32)
    bits = (words.unsqueeze(-1) >> shifts) & 1  # the arithmetic shift's copies of the sign bit are cut off by the & 1
    return bits.flatten(-2)[..., :vocab_size].to(torch.bool)
