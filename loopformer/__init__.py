"""Looped transformers: a pretrained decoder whose middle block is applied again and again, one step per loop."""

import os

# Small two-thread operations can take 8 ms instead of 0.06 ms while OpenMP threads spin without end on a busy machine,
# and pay a wake-up each if they sleep at once. So: sleep, after spinning for some microseconds. OpenMP reads both
# variables once, when torch loads it: hence here, before anything below imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "30000")

__version__ = "0.1.0"
