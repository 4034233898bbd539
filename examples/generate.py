"""Text with drafting, and the proof that it is the target's own. Run: python examples/generate.py"""

from __future__ import annotations

import outrider


def main() -> None:
    model = outrider.load()  # the pair that comes with the package; or load("path/to/target", "path/to/draft")
    prompt = "class Point:\n    def __init__(self, x, y):"
    completion = model.generate(prompt, max_new_tokens=40)
    print(prompt + completion.text)

    plain = model.without_draft().generate(prompt, max_new_tokens=40)
    print(f"same tokens as the target alone: {completion.token_ids == plain.token_ids}")
    print(f"tokens for each round of verification: {completion.statistics.mean_acceptance_length:.2f}")

    # A seed belongs to the text, not to the way it is made: drafting changes nothing about sampled text either.
    prompts = ["for i in range(10):", "import numpy as np\n"]
    sampled = model.generate_batch(prompts, temperature=0.8, top_p=0.95, seed=7, max_new_tokens=16)
    again = model.without_draft().generate_batch(prompts, temperature=0.8, top_p=0.95, seed=7, max_new_tokens=16)
    for one, other in zip(sampled.completions, again.completions, strict=True):
        print(repr(one.text), one.token_ids == other.token_ids)


if __name__ == "__main__":
    main()
