"""Tests share the makers in helpers.py, keep to one core, and try the same examples in every run."""

import os
import sys
from pathlib import Path

from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported: its tensors here are tiny
sys.path.insert(0, str(Path(__file__).parent))
settings.register_profile("turnwise", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("turnwise")
