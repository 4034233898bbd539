"""Trains the small multimodal pair: a LLaVA that reads rows of handwritten digits, and an EAGLE-3 head for it.

Run: python -m examples.digits.train OUT_DIR --device cuda
"""
