"""The network of this sample: give it as ``--arch .../mlp.py:digits_mlp --trust-code``."""

from torch import nn


def digits_mlp(num_classes: int = 10) -> nn.Sequential:
    """64 pixels, three hidden layers of 100 with ReLU."""
    return nn.Sequential(
        nn.Linear(64, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )
