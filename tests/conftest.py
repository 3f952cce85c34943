"""Property tests: the suite is a gate and draws the same examples each time.

`pytest --hypothesis-profile search` draws new ones.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("gate", derandomize=True, deadline=None)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("gate")
