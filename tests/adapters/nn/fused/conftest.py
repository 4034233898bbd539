"""Without a CUDA device the kernels run in Triton's interpreter, which must be asked for before they are first imported."""

from __future__ import annotations

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
