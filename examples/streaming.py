"""Text as it grows, of one prompt and of several at once. Run: python examples/streaming.py"""

from __future__ import annotations

from collections.abc import Sequence

import outrider


def show(model: outrider.SpeculativeModel, prompt: str) -> None:
    """Print the text round by round; a bar marks where each round ends."""
    for delta in model.stream(prompt, max_new_tokens=24, stop="\n\n"):
        print(delta.text, end="|", flush=True)
        if delta.completion is not None:
            print(f"\nended by {delta.completion.finish_reason} {delta.completion.stop!r}")


def first_to_finish(model: outrider.SpeculativeModel, prompts: Sequence[str], max_new_tokens: int) -> str:
    """The text of the prompt that is done first. Leaving the loop ends the other requests and frees their memory."""
    settings = outrider.RequestSettings(max_new_tokens=max_new_tokens)
    texts = dict.fromkeys(range(len(prompts)), "")
    for delta in model.stream_batch(prompts, settings=settings):
        texts[delta.index] += delta.text
        if delta.completion is not None:
            return prompts[delta.index] + texts[delta.index]
    raise AssertionError("every prompt ends with a completion")


def main() -> None:
    model = outrider.load()
    show(model, "import numpy as np\n")
    print(first_to_finish(model, ["class A:\n", "if __name__ ==", "x = ["], max_new_tokens=48))


if __name__ == "__main__":
    main()
