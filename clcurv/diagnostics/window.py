"""How many samples a step up the effective rank needs. No torch here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from clcurv.diagnostics.spectrum import LayerFeatures

ROWS_PER_FEATURE = 1.5
PUBLISHED_WINDOWS = (100, 1200)  # samples; arXiv 2509.22335, Permuted MNIST and ImageNet


def er_window(features: Sequence[LayerFeatures], n_samples: int) -> int:
    """Samples with which every layer has one and a half rows a feature, within what is published.

    With fewer rows than features the rank is that of the sample, and its gradient pulls single
    samples apart instead of using more of the layer.

    Args:
        features: Layers, measured on `n_samples`.
        n_samples: As many rows as these gave are n.
    """
    low, high = PUBLISHED_WINDOWS
    needed = [ROWS_PER_FEATURE * x.d * n_samples / max(x.n, 1) for x in features]
    return min(max(math.ceil(max(needed, default=low)), low), high)
