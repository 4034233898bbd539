"""An independent model of attention, and transformers models to compare with."""

from __future__ import annotations

import json
from abc import abstractmethod
from pathlib import Path
from typing import Protocol, cast

import torch
from attrs import frozen
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType] - PathLike without its type
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from outrider.checkpoint import Checkpoint
from outrider.interfaces import LoadOptions, Target
from outrider.types import AttentionSpec, HiddenTap, StackInputs, StackOutput
from outrider_adapters.llama import LlamaLoader

CPU = torch.device("cpu")


class ReferenceAttend:
    """Causal, windowed softmax attention of one sequence, one query at a time, over ever-growing lists."""

    def __init__(self, layers: tuple[AttentionSpec, ...]) -> None:
        self._layers = layers
        self._keys: list[list[Tensor]] = [[] for _ in layers]
        self._values: list[list[Tensor]] = [[] for _ in layers]
        self.calls: list[int] = []

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        spec = self._layers[layer]
        assert q.shape[1:] == (spec.num_heads, spec.head_dim)
        assert k.shape == v.shape == (q.shape[0], spec.num_kv_heads, spec.head_dim)
        self.calls.append(layer)
        keys, values = self._keys[layer], self._values[layer]
        group = spec.num_heads // spec.num_kv_heads
        rows: list[Tensor] = []
        for row in range(q.shape[0]):
            keys.append(k[row].clone())
            values.append(v[row].clone())
            first = 0 if spec.window is None else max(0, len(keys) - spec.window)
            seen_k = torch.stack(keys[first:]).repeat_interleave(group, dim=1)
            seen_v = torch.stack(values[first:]).repeat_interleave(group, dim=1)
            weights = (torch.einsum("hd,shd->hs", q[row], seen_k) * spec.scale).softmax(dim=-1)
            rows.append(torch.einsum("hs,shd->hd", weights, seen_v))
        return torch.stack(rows)


class Sequence:
    """One sequence run through a target in pieces: first the prompt, then whatever is appended."""

    def __init__(self, target: Target, taps: tuple[HiddenTap, ...] = ()) -> None:
        self._stack = target.stack
        self.attend = ReferenceAttend(target.stack.spec.layers)
        self._taps = taps
        self._length = 0

    def run(self, token_ids: list[int]) -> StackOutput:
        """Outputs of the appended tokens, encoded at once."""
        device = self._stack.spec.device
        positions = torch.arange(self._length, self._length + len(token_ids), device=device)
        self._length += len(token_ids)
        lengths = torch.full_like(positions, self._length) if self._stack.spec.positions.needs_lengths else None
        hidden = self._stack.embed(torch.tensor(token_ids, device=device))
        before = hidden.clone()
        output = self._stack.run_layers(hidden, StackInputs(positions, self.attend, self._taps, lengths))
        assert torch.equal(hidden, before), "run_layers changed its input"
        return output

    def logits(self, token_ids: list[int]) -> Tensor:
        """Logits of the appended tokens, encoded at once."""
        return self._stack.logits(self.run(token_ids).hidden)


@frozen(eq=False)
class HubOutput:
    """What a transformers model gave: ``logits [T, V]`` and ``hidden_states`` 0 … N, ``[T, H]`` each."""

    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class _Output(Protocol):
    logits: Tensor
    hidden_states: tuple[Tensor, ...]


class _Model(Protocol):
    @abstractmethod
    def __call__(
        self, input_ids: Tensor, mask: None, positions: None, cache: DynamicCache, *, output_hidden_states: bool
    ) -> _Output: ...

    @abstractmethod
    def save_pretrained(self, directory: Path, *, max_shard_size: str) -> None: ...

    @abstractmethod
    def named_parameters(self) -> list[tuple[str, Tensor]]: ...

    @abstractmethod
    def eval(self) -> _Model: ...


class HubModel:
    """A small random transformers model in float32 with eager attention."""

    def __init__(self, model_type: str, **settings: object) -> None:
        # Named by type, not by class, so that one builder serves all families; these two factories are untyped.
        values = {**_SIZES, **settings}
        self._config = AutoConfig.for_model(model_type, **values)  # pyright: ignore[reportUnknownMemberType] - **kwargs
        made: object = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers' own
            self._config, attn_implementation="eager"
        )
        self._model = cast("_Model", made).eval()
        generator = torch.Generator().manual_seed(len(settings))
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                # Norms and biases start as ones and zeros, which would hide a missing one.
                parameter.normal_(1.0 if "norm" in name else 0.0, 0.15, generator=generator)

    def save(self, directory: Path, max_shard_size: str = "1GB") -> Path:
        self._model.save_pretrained(directory, max_shard_size=max_shard_size)
        return directory

    def run(self, pieces: list[list[int]]) -> list[HubOutput]:
        """Outputs of a sequence encoded piece by piece with transformers' own cache."""
        cache = DynamicCache(config=self._config)
        outputs: list[HubOutput] = []
        with torch.no_grad():
            for piece in pieces:
                # By place: the name of the cache's parameter differs between versions.
                output = self._model(torch.tensor([piece]), None, None, cache, output_hidden_states=True)
                outputs.append(HubOutput(output.logits[0], tuple(state[0] for state in output.hidden_states)))
        return outputs


_SIZES: dict[str, object] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def load(directory: Path, dtype: torch.dtype | None = torch.float32, device: torch.device = CPU) -> Target:
    """The checkpoint as our loader loads it."""
    return LlamaLoader().load(Checkpoint(directory), LoadOptions(device, dtype))


def tokens(count: int, seed: int = 0) -> list[int]:
    """``count`` ids of the small vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    return [int(token) for token in torch.randint(3, 97, (count,), generator=generator)]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Every tensor of a checkpoint, in memory."""
    files = Checkpoint(directory).files
    return {name: files.read(name).clone() for name in files.infos}


def write_tensors(directory: Path, tensors: dict[str, Tensor]) -> None:
    """Replace the one safetensors file of a checkpoint."""
    save_file(tensors, directory / "model.safetensors")


def edit_config(directory: Path, name: str = "config.json", /, **changes: object) -> None:
    """Set keys of a JSON file; a value of `...` removes the key."""
    path = directory / name
    config: dict[str, object] = json.loads(path.read_text()) if path.exists() else {}
    kept = {key: value for key, value in {**config, **changes}.items() if value is not ...}
    path.write_text(json.dumps(kept))
