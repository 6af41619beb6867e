"""Looped transformers: a pretrained decoder whose middle block is applied again and again, one step per loop."""

import os

# Two-thread operations on tiny tensors can take 8 ms instead of 0.06 ms while idle OpenMP threads spin. The variable
# is read once, when torch loads its OpenMP runtime: hence here, before anything below imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = "0.1.0"
