"""Measurements of speed, acceptance and numerics; run as modules from the checkout (``python -m benchmarks.cpu``)."""
