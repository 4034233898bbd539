"""`load`: from directories or hub ids to a `SpeculativeModel`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs
import torch
from attrs import evolve
from typing_extensions import Unpack

from outrider import registry
from outrider.checkpoint import Checkpoint
from outrider.errors import CheckpointError, ConfigurationError, Problems
from outrider.generation.attention import choose_attention
from outrider.generation.drafters import DraftPlan
from outrider.generation.drafting import AUTO, DraftingKeywords, DraftingOptions
from outrider.generation.model import SpeculativeModel
from outrider.graphs import Buckets, RunnerOptions, request_buckets, token_buckets
from outrider.interfaces import GraphRunner, LoadOptions, LoadProgress, ModelPair
from outrider.loop.build import EngineOptions
from outrider.types import RequestCount, Role, TokenCount

__all__ = ["DTYPES", "load", "plan_drafting", "resolve_directory", "runner_options"]

DEFAULT_PAIR = "tiny"
DTYPES: Mapping[str, torch.dtype | None] = {
    "auto": None,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load(
    target: str | Path | None = None,
    draft: str | Path | None = "auto",
    *,
    device: str | torch.device = "auto",
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | torch.dtype = "auto",
    attention: str = AUTO,
    runner: str = AUTO,
    role: Literal["both", "prefill", "decode"] | Role = "both",
    capture: bool = False,
    capture_tokens: Sequence[int] | None = None,
    capture_requests: Sequence[int] | None = None,
    options: EngineOptions | None = None,
    allow_pickle: bool = False,
    progress: LoadProgress | None = None,
    **drafting: Unpack[DraftingKeywords],
) -> SpeculativeModel:
    """A model ready to generate.

    ``target``: a directory, a hub id, the name of an installed pair, or ``None`` for the embedded one. ``draft``: likewise;
    ``"auto"`` is the draft of the pair and nothing for any other target; ``None`` or ``"none"`` drafts nothing.
    ``drafting``: what is drafted and how it is verified, as in `DraftingOptions`: chains (the default), dynamic or fixed
    trees, exact or other verification, the drafter. ``dtype`` ``"auto"``: float32 on a CPU, the checkpoint's own elsewhere.
    ``attention`` ``"auto"``: Triton's kernels on a CUDA device where they can be built and serve the models, else PyTorch's.
    ``runner`` ``"auto"``: rounds are replayed as CUDA graphs on a CUDA device, and run eagerly on a CPU. ``role``: what the
    worker does, and so what its runner captures. ``capture``: every size is captured before this returns, else when it is
    first needed; ``capture_tokens`` and ``capture_requests`` are the sizes of prompts and of rounds, by default the runner's.

    Raises:
        CheckpointError: a directory is missing, foreign or faulty.
        BindError: target and draft do not fit.
        ConfigurationError: an option cannot be honoured; contradictions are found before anything is loaded.
    """
    _check_engine_options(drafting)
    plan = plan_drafting(target, draft, DraftingOptions.of(drafting))
    wanted = runner_options(role, capture_tokens, capture_requests)
    place = _device(device)
    load_options = LoadOptions(place, _dtype(dtype, place), progress)
    pair = _pair(target)
    draft_name = _draft_name(draft, pair) if plan.needs_model else None
    target_directory = pair.target if pair is not None else resolve_directory(str(target))
    loaded = registry.load_target(Checkpoint(target_directory, allow_pickle), load_options)
    bound = None
    if draft_name is not None:
        # Checkpoints of a pair are often stored in different dtypes; they run in the target's.
        draft_options = evolve(load_options, dtype=loaded.stack.spec.dtype)
        bound = plan.load(resolve_directory(draft_name), draft_options, allow_pickle).bind(loaded)
    chosen, attention_notes = choose_attention(attention, loaded.stack.spec, bound, options)
    model = SpeculativeModel(
        loaded,
        plan.builder(bound),
        attention=chosen,
        runner=_runner(runner, place, wanted),
        verifier=plan.verifier.verifier,
        options=options,
        notes=(
            *_notes("target", loaded.notes),
            *(() if bound is None else _notes("draft", bound.spec.notes)),
            *_notes("attention", attention_notes),
        ),
    )
    if capture:
        model.capture()
    return model


def _check_engine_options(names: Iterable[str]) -> None:
    misplaced = sorted(set(names) & {attribute.name for attribute in attrs.fields(EngineOptions)})
    if misplaced:
        raise ConfigurationError(
            f"{', '.join(misplaced)} {'is an option' if len(misplaced) == 1 else 'are options'} of the engine; give "
            f"options=EngineOptions({', '.join(f'{name}=…' for name in misplaced)})"
        )


def _notes(what: str, notes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{what}: {note}" for note in notes)


def plan_drafting(target: str | Path | None, draft: str | Path | None, drafting: DraftingOptions) -> DraftPlan:
    """What `load` would do about drafting; loads nothing and asks no hub.

    Raises:
        ConfigurationError: ``drafting`` cannot be honoured for such a target and draft; all reasons at once.
    """
    has_draft = _draft_name(draft, _pair(target)) is not None
    return DraftPlan.of(drafting, has_draft, explicit=has_draft and str(draft) != "auto")


def resolve_directory(name: str) -> Path:
    """The directory ``name``, or the local snapshot of the hub model ``name`` (fetched where the network allows).

    Raises:
        CheckpointError: neither a directory nor a model that can be had.
    """
    looks_like_hub_id = name.count("/") == 1 and not name.startswith((".", "/", "~"))
    try:
        path = Path(name).expanduser()
        if path.exists() or not looks_like_hub_id:
            return path
    except (OSError, ValueError, RuntimeError) as error:  # too long, no permission, a NUL in it, no such user
        raise CheckpointError(f"'{name:.100}' cannot be a directory ({error!s:.100}); check the path") from error
    # Its annotations are partial; imported here since few calls need it and it is slow to import.
    from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    wanted = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]
    try:
        return Path(snapshot_download(name, allow_patterns=wanted))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"'{name}' is no directory here, and the model hub cannot give it ({error}); check the name, or give a path"
        ) from error


def runner_options(
    role: str | Role = Role.BOTH, tokens: Sequence[int] | None = None, requests: Sequence[int] | None = None
) -> RunnerOptions:
    """What a runner is asked for, from names and plain numbers.

    Raises:
        ConfigurationError: no such role, or sizes that cannot be; all at once.
    """
    token_sizes: Buckets[TokenCount] | None = None
    request_sizes: Buckets[RequestCount] | None = None
    with Problems("the runner cannot be made as asked", ConfigurationError) as problems:
        roles = [each.value for each in Role]
        if not isinstance(role, Role) and role not in roles:
            problems.add(f"role '{role}' is not known; allowed are {', '.join(roles)}")
        try:
            token_sizes = None if tokens is None else token_buckets(tokens)
        except ConfigurationError as error:
            problems.add(f"capture_tokens: {error}")
        try:
            request_sizes = None if requests is None else request_buckets(requests)
        except ConfigurationError as error:
            problems.add(f"capture_requests: {error}")
    return RunnerOptions(Role(role), token_sizes, request_sizes)


def _runner(name: str, device: torch.device, options: RunnerOptions) -> Callable[[], GraphRunner]:
    if name == AUTO:
        name = "cuda-graph" if device.type == "cuda" else "eager"
    return lambda: registry.runner(name, options)


def _pair(target: str | Path | None) -> ModelPair | None:
    if target is None:
        return registry.pair(DEFAULT_PAIR)
    name = str(target)
    return registry.pair(name) if name in registry.names(registry.PAIRS) and not Path(name).exists() else None


def _draft_name(draft: str | Path | None, pair: ModelPair | None) -> str | None:
    """Directory or hub id of the draft, not resolved yet."""
    if draft is None or str(draft) == "none":
        return None
    if str(draft) == "auto":
        return str(pair.drafts[0]) if pair is not None and pair.drafts else None
    return str(draft)


def _device(device: str | torch.device) -> torch.device:
    if str(device) == "auto":
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise ConfigurationError(f"device '{device}' is not known to PyTorch; try cpu, cuda or cuda:1") from error
    if place.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigurationError(f"device '{device}' is asked, but PyTorch sees no CUDA device; use device cpu")
        if ":" not in str(place):
            return torch.device("cuda", torch.cuda.current_device())
        if place.index >= torch.cuda.device_count():
            raise ConfigurationError(
                f"device '{device}' is asked, PyTorch sees {torch.cuda.device_count()} CUDA devices"
            )
        return place
    try:
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:  # whatever a PyTorch built without it raises
        raise ConfigurationError(
            f"device '{device}' is asked, but this PyTorch cannot use it; try cpu or cuda"
        ) from error
    return place


def _dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in DTYPES:
        raise ConfigurationError(f"dtype '{dtype}' is not known; allowed are {', '.join(DTYPES)}")
    if dtype == "auto" and device.type == "cpu":
        return torch.float32
    return DTYPES[dtype]
