"""`SamplingRows`: the sampling parameters of all running requests on the device."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain

import torch
from torch import Tensor

from outrider._torch import uploaded
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
        # As in `RowStore`: a row of these is a column of the state, a column of them is one request.
        neutral = torch.tensor(_floats_of(SamplingParams()), dtype=torch.float32, device=device)
        self._floats = neutral[:, None].repeat(1, num_rows)
        self._integers = torch.zeros(3, num_rows, dtype=torch.int64, device=device)
        self._parts = tuple(zip(self._floats.unbind(1), self._integers.unbind(1), strict=True))
        self._temperatures = self._floats[0].unbind(0)
        self._bias: Tensor | None = None
        self._views: dict[tuple[int, int], SamplingState] = {}
        self._unions: dict[tuple[int, int], SamplingFeatures] = {}

    def features(self, first: int, count: int) -> SamplingFeatures:
        """The union of what rows first..first+count-1 use."""
        features = self._unions.get((first, count))
        if features is None:
            features = SamplingFeatures()
            for row in set(self._features[first : first + count]):
                features = features | row
            self._unions[first, count] = features
        return features

    def view(self, first: int, count: int) -> SamplingState:
        """Rows first..first+count-1; features are the union over those rows. The same object until these change."""
        features = self.features(first, count)
        view = self._views.get((first, count))
        if view is None or view.features != features:
            view = self._view(slice(first, first + count), features)
            self._views[first, count] = view
        return view

    def _view(self, rows: slice, features: SamplingFeatures) -> SamplingState:
        temperature, top_p, min_p, repetition, presence, frequency = self._floats[:, rows].unbind(0)
        top_k, seeds, min_totals = self._integers[:, rows].unbind(0)
        return SamplingState(
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            min_p=min_p,
            repetition_penalty=repetition,
            presence_penalty=presence,
            frequency_penalty=frequency,
            seeds=seeds,
            min_totals=min_totals,
            bias=None if self._bias is None else self._bias[rows],
            features=features,
        )

    def set_row(self, row: int, params: SamplingParams, prompt_length: int) -> None:
        """Write ``params`` into ``row``; enqueues copies to the device, no synchronisation."""
        self.set_rows(row, [params], [prompt_length])

    def set_rows(self, first: int, params: Sequence[SamplingParams], prompt_lengths: Sequence[int]) -> None:
        """Write ``params`` into rows first..; enqueues copies to the device, no synchronisation."""
        rows = slice(first, first + len(params))
        floats = array("f", chain.from_iterable(zip(*map(_floats_of, params), strict=True)))
        integers = array("q", chain.from_iterable(zip(*map(_integers_of, params, prompt_lengths), strict=True)))
        self._floats[:, rows] = uploaded(floats, self._device).view(-1, len(params))
        self._integers[:, rows] = uploaded(integers, self._device).view(-1, len(params))
        self._unions.clear()
        for row, each in enumerate(params, first):
            self._features[row] = features_of(each)
            if self._features[row].bias:
                self._bias_storage()[row] = self._bias_row(each).to(self._device)
            elif self._bias is not None:
                self._bias[row].fill_(0.0)

    def clear_row(self, row: int) -> None:
        """Back to greedy, so that an empty row costs nothing."""
        self._unions.clear()
        self._features[row] = SamplingFeatures()
        self._temperatures[row].zero_()

    def move_row(self, source: int, destination: int) -> None:
        """Copy row ``source`` over ``destination``."""
        self._unions.clear()
        self._features[destination] = self._features[source]
        for into, part in zip(self._parts[destination], self._parts[source], strict=True):
            into.copy_(part)
        if self._bias is not None:
            self._bias[destination] = self._bias[source]

    def _bias_storage(self) -> Tensor:
        if self._bias is None:
            shape = (len(self._features), self._vocab_size)
            self._bias = torch.zeros(shape, dtype=torch.float32, device=self._device)
            self._views.clear()
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


def _floats_of(params: SamplingParams) -> tuple[float, ...]:
    return (
        params.temperature,
        params.top_p,
        params.min_p,
        params.repetition_penalty,
        params.presence_penalty,
        params.frequency_penalty,
    )


def _integers_of(params: SamplingParams, prompt_length: int) -> tuple[int, ...]:
    return (params.top_k, params.seed, min(prompt_length + params.min_new_tokens, torch.iinfo(torch.int64).max))
