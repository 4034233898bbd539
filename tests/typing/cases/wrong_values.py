"""Values that must not be mixed up: taps and ints, tokens and requests, raw and declared."""

from __future__ import annotations

from outrider.types import (
    BufferSlot,
    DraftSpec,
    HiddenTap,
    ModelSpec,
    Phase,
    PhaseShape,
    RequestCount,
    StackInputs,
    StackOutput,
    TokenCount,
)


def taps_as_ints(inputs: StackInputs, output: StackOutput) -> StackInputs:
    tap: HiddenTap = 2  # error: [assignment]
    print(output.taps[tap])  # error: [call-overload]
    print(tap + 1)  # error: [operator]
    return StackInputs(inputs.positions, inputs.attend, (2, 16, 29))  # error: [arg-type]


def requests_for_tokens(tokens: TokenCount, requests: RequestCount) -> RequestCount:
    PhaseShape(tokens=requests, requests=requests)  # error: [arg-type]
    PhaseShape(tokens=tokens, requests=tokens)  # error: [arg-type]
    PhaseShape(tokens=8, requests=requests)  # error: [arg-type]
    rows: TokenCount = requests  # error: [assignment]
    return TokenCount(rows + 1)  # error: [return-value]


def changes_what_is_frozen(spec: ModelSpec, draft: DraftSpec, slot: BufferSlot) -> None:
    spec.hidden_size = 3  # error: [misc]
    draft.taps = ()  # error: [misc]
    slot.axis = "tokens"  # error: [misc, assignment]
    print(spec.kv_heads)  # error: [attr-defined]


def names_a_phase_by_a_string() -> Phase:
    return "target verify"  # error: [return-value]
