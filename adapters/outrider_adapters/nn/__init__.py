"""Building blocks shared by target and draft adapters: rope, norms, attention, feed-forward, weight loading.

What is exported here is public, for adapters of third parties as well; the modules below are not.
"""

from __future__ import annotations

from outrider_adapters.nn.blocks import ACTIVATIONS, Activation, FusedAttention, GatedMlp, read_activation
from outrider_adapters.nn.devices import same_device
from outrider_adapters.nn.norm import HeadNorms, JoinedNorms, RmsNorm
from outrider_adapters.nn.projection import Projection, head_logits
from outrider_adapters.nn.rope import Rope, extended_positions, read_rope, rotate
from outrider_adapters.nn.weights import WeightLoader

__all__ = [
    "ACTIVATIONS",
    "Activation",
    "FusedAttention",
    "GatedMlp",
    "HeadNorms",
    "JoinedNorms",
    "Projection",
    "RmsNorm",
    "Rope",
    "WeightLoader",
    "extended_positions",
    "head_logits",
    "read_activation",
    "read_rope",
    "rotate",
    "same_device",
]
