"""`SamplingRows`: the sampling parameters of all running requests on the device."""

from __future__ import annotations

import torch
from torch import Tensor

from outrider.types.sampling import SamplingFeatures, SamplingParams, SamplingState

__all__ = ["SamplingRows", "features_of"]


def features_of(params: SamplingParams) -> SamplingFeatures:
    """Which parts of sampling ``params`` use."""
    sampled = not params.greedy
    return SamplingFeatures(
        sampled=sampled,
        top_k=sampled and params.top_k > 0,
        top_p=sampled and params.top_p < 1.0,
        min_p=sampled and params.min_p > 0.0,
        penalties=(params.repetition_penalty, params.presence_penalty, params.frequency_penalty) != (1.0, 0.0, 0.0),
        bias=bool(params.logit_bias or params.banned_token_ids or params.allowed_token_ids is not None),
        min_tokens=params.min_new_tokens > 0,
    )


class SamplingRows:
    """Device tensors of `SamplingState` for ``num_rows`` requests, with the union of the features in use."""

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._features = [SamplingFeatures()] * num_rows
        floats = torch.zeros(6, num_rows, dtype=torch.float32, device=device)
        self._temperature, self._top_p, self._min_p, self._repetition, self._presence, self._frequency = floats
        self._top_p.fill_(1.0)
        self._repetition.fill_(1.0)
        integers = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self._top_k, self._seeds, self._min_totals = integers
        self._bias: Tensor | None = None
        self._views: dict[tuple[int, int], SamplingState] = {}

    def view(self, first: int, count: int) -> SamplingState:
        """Rows first..first+count-1; features are the union over those rows. The same object until a row changes."""
        view = self._views.get((first, count))
        if view is None:
            view = self._views[first, count] = self._view(first, count)
        return view

    def _view(self, first: int, count: int) -> SamplingState:
        rows = slice(first, first + count)
        features = SamplingFeatures()
        for row in self._features[rows]:
            features = features | row
        return SamplingState(
            temperature=self._temperature[rows],
            top_k=self._top_k[rows],
            top_p=self._top_p[rows],
            min_p=self._min_p[rows],
            repetition_penalty=self._repetition[rows],
            presence_penalty=self._presence[rows],
            frequency_penalty=self._frequency[rows],
            seeds=self._seeds[rows],
            min_totals=self._min_totals[rows],
            bias=None if self._bias is None else self._bias[rows],
            features=features,
        )

    def set_row(self, row: int, params: SamplingParams, prompt_length: int) -> None:
        """Write ``params`` into ``row``; enqueues device fills, no synchronisation."""
        self._views.clear()
        self._features[row] = features_of(params)
        self._temperature[row].fill_(params.temperature)
        self._top_k[row].fill_(params.top_k)
        self._top_p[row].fill_(params.top_p)
        self._min_p[row].fill_(params.min_p)
        self._repetition[row].fill_(params.repetition_penalty)
        self._presence[row].fill_(params.presence_penalty)
        self._frequency[row].fill_(params.frequency_penalty)
        self._seeds[row].fill_(params.seed)
        self._min_totals[row].fill_(min(prompt_length + params.min_new_tokens, torch.iinfo(torch.int64).max))
        if self._features[row].bias:
            self._bias_storage()[row] = self._bias_row(params).to(self._device)
        elif self._bias is not None:
            self._bias[row].fill_(0.0)

    def clear_row(self, row: int) -> None:
        """Back to greedy, so that an empty row costs nothing."""
        self._views.clear()
        self._features[row] = SamplingFeatures()
        self._temperature[row].fill_(0.0)

    def move_row(self, source: int, destination: int) -> None:
        """Copy row ``source`` over ``destination``."""
        self._views.clear()
        self._features[destination] = self._features[source]
        for tensor in (
            self._temperature,
            self._top_k,
            self._top_p,
            self._min_p,
            self._repetition,
            self._presence,
            self._frequency,
            self._seeds,
            self._min_totals,
        ):
            tensor[destination] = tensor[source]
        if self._bias is not None:
            self._bias[destination] = self._bias[source]

    def _bias_storage(self) -> Tensor:
        if self._bias is None:
            shape = (len(self._features), self._vocab_size)
            self._bias = torch.zeros(shape, dtype=torch.float32, device=self._device)
        return self._bias

    def _bias_row(self, params: SamplingParams) -> Tensor:
        row = torch.zeros(self._vocab_size, dtype=torch.float32)
        for token, value in params.logit_bias.items():
            row[token] = value
        if params.allowed_token_ids is not None:
            forbidden = torch.ones(self._vocab_size, dtype=torch.bool)
            forbidden[list(params.allowed_token_ids)] = False
            row[forbidden] = float("-inf")
        row[list(params.banned_token_ids)] = float("-inf")
        return row
