"""Options on how an untrusted checkpoint is read, made ready for the library."""

from __future__ import annotations

import os
from typing import Any

from clcurv.cli.messages import Messages
from clcurv.cli.options import parse_bytes

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE")


def prepare_reading(options: dict[str, Any], messages: Messages) -> None:
    """Turn sizes into numbers, keep the libraries off the network, say what is unsafe.

    Args:
        options: The command's; changed in place.
        messages: Where to talk.

    Raises:
        UsageError: A size that cannot be read.
        UnsafeFileError: Code from outside the installed packages without ``--trust-code``.
    """
    from clcurv.inputs.user_code import refuse_untrusted

    code = ("arch", "loss", "batch_fn", "data", "new_data", "past", "current")
    refuse_untrusted(map(options.get, code), trust_code=options["trust_code"])
    if options["max_bytes"] is not None:
        options["max_bytes"] = parse_bytes(options["max_bytes"], flag="--max-bytes")
    if options.get("memory") is not None:
        options["memory"] = parse_bytes(options["memory"])
    if not options["online"]:
        # Before they are imported: they read it then.
        os.environ.update(dict.fromkeys(_OFFLINE, "1"))
    if options["unsafe_pickle"]:
        messages.warning(
            "--unsafe-pickle: code inside the checkpoint will run with your rights; only for "
            "files that you made yourself",
            loud=True,
        )
