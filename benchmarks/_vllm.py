"""vLLM as a contestant, where it is installed: the embedded pair in one process, plain and with its EAGLE-3 support."""

from __future__ import annotations

import importlib
import importlib.util
import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from benchmarks._cases import TokenIds
from benchmarks._outrider import MAX_NEW_TOKENS
from benchmarks._race import Answer, Contestant
from outrider_adapters.pairs import tiny

__all__ = ["vllm_contestant", "vllm_is_installed"]


class _Output(Protocol):
    token_ids: Sequence[int]


class _RequestOutput(Protocol):
    outputs: Sequence[_Output]


class _Llm(Protocol):
    @abstractmethod
    def generate(
        self, prompts: Sequence[Mapping[str, object]], sampling_params: object, *, use_tqdm: bool
    ) -> Sequence[_RequestOutput]: ...


def vllm_is_installed() -> bool:
    """Whether ``import vllm`` could work; imports nothing."""
    return importlib.util.find_spec("vllm") is not None


def vllm_contestant(num_draft_tokens: int) -> Contestant:
    """vLLM with a chain of ``num_draft_tokens`` of the EAGLE-3 draft, or plain with 0.

    Rounds are its own affair: passes are counted as if nothing was drafted.
    """
    # One process, so that it shares the fate of the other contestants; read when vllm is imported.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    module = importlib.import_module("vllm")
    make = cast("Callable[..., _Llm]", module.LLM)
    sampling = cast("Callable[..., object]", module.SamplingParams)(temperature=0.0, max_tokens=MAX_NEW_TOKENS)
    pair = tiny()
    settings: dict[str, object] = {"model": str(pair.target), "dtype": "float32", "max_model_len": 2048}
    if num_draft_tokens:
        settings["speculative_config"] = {
            "method": "eagle3",
            "model": str(pair.drafts[0]),
            "num_speculative_tokens": num_draft_tokens,
        }
    engine = make(**settings)

    def generate(prompts: Sequence[TokenIds]) -> Answer:
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        outputs = engine.generate(requests, sampling, use_tqdm=False)
        ids = tuple(tuple(output.outputs[0].token_ids) for output in outputs)
        return Answer(ids, max(len(continuation) for continuation in ids))

    name = f"vLLM, EAGLE-3 chain {num_draft_tokens}" if num_draft_tokens else "vLLM"
    return Contestant(name, generate)
