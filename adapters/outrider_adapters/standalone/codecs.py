"""Whether two tokenizers mean the same by the same ids."""

from __future__ import annotations

from outrider.interfaces import TextCodec

__all__ = ["first_difference"]

_PROBES = (
    "The quick brown fox jumps over the lazy dog, doesn't it? YES: 0123456789 + 3.14e-10!",
    'def main(args: list[str]) -> int:\n    """Doc."""\n\treturn {"key": [1, 2]}[args[0]] if args else -1\n',
    "".join(map(chr, range(32, 127))),
    "Größe, façade, naïve, €5 — “quoted”… Привет, мир; 你好，世界。こんにちは 안녕하세요 مرحبا שלום 🙂👩‍💻",
    "<html><body class='a b'>&amp;</body></html>  # comment // another /* third */ SELECT * FROM users WHERE id = 7;",
)


def first_difference(draft: TextCodec, target: TextCodec) -> str | None:
    """Where ``draft`` reads ids of ``target`` as other text, in a clause; ``None`` where they agree on every probe.

    Prompts are encoded by the target alone, so it is the meaning of its ids that must agree: each id that the probe texts
    encode to, and the texts as a whole. Which special tokens a tokenizer puts in front does not matter.
    """
    for probe in _PROBES:
        ids = target.encode(probe)
        for token in dict.fromkeys(ids):
            here, there = draft.decode([token]), target.decode([token])
            if here != there:
                return f"id {token} is {here!r} to the draft and {there!r} to the target"
        here, there = draft.decode(ids), target.decode(ids)
        if here != there:
            return f"the target's ids of {probe!r} are {here!r} to the draft and {there!r} to the target"
    return None
