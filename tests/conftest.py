"""What holds for all tests: no network, a thread per process, the same examples each time."""

from __future__ import annotations

import os

from hypothesis import settings

# Before torch and transformers read them, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

# A gate must not depend on luck: `pytest --hypothesis-profile search` looks for new examples.
settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("gate")
