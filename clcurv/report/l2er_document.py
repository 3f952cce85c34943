"""The recommendation of ``clcurv spectrum --l2er``: schema ``clcurv.l2er``, version 1.0.

Made by `clcurv.report.spectrum_build.l2er_document`, read by `clcurv.training.L2ER`.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from clcurv.report.document import Document
from clcurv.report.spectrum_document import L2erInfo

SCHEMA: Final = "clcurv.l2er"


class L2erDocument(L2erInfo, Document):
    """The coefficients of L2-ER, for a training job to read.

    Attributes:
        verdict: The spectrum report's verdict on the network.
        evidence: Why.
        arch: The network that the step was measured on.
        stream: The stream's name.
    """

    schema_: Literal["clcurv.l2er"] = Field(
        default=SCHEMA, validation_alias="schema", serialization_alias="schema"
    )
    verdict: str
    evidence: str
    arch: str
    stream: str
