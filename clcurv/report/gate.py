"""Conditions on a report -> pass, fail or inconclusive, and the exit code.

``--fail-on EXPR`` names what must not be: the gate **fails where EXPR is true**. It is
inconclusive, never silently passed, where EXPR cannot be decided: the value is null, not
converged or not resolved, its 95 % interval straddles the limit, the data were generated, or the
run was interrupted; `clcurv.report.gate_rules` has what that means for each kind of report. The
exit code is 10 when a gate fails, else 11 when one is inconclusive (unless that is asked to
pass), else 0.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from clcurv.errors import UsageError
from clcurv.report.document import Document, GateOutcome, Verdict
from clcurv.report.gate_rules import Rules, rules_of
from clcurv.report.kappa_document import KappaDocument
from clcurv.report.paths import Found, Path, parse_path, resolve
from clcurv.report.text import number

Policy = Literal["fail", "pass"]
Outcome = Literal["pass", "fail", "inconclusive"]
FAILED: Final = 10
INCONCLUSIVE: Final = 11

_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPRESSION = re.compile(
    r"""\s*(?P<path>(?:[^<>=!"'\s]|"[^"]*"|'[^']*')+)\s*(?P<op>>=|<=|==|!=|>|<)\s*(?P<value>.*?)\s*""",
    re.DOTALL,
)
_WORDS = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Gate:
    """``path op limit``, already known to fit the schema."""

    expression: str
    path: Path
    op: str
    limit: float | str | bool | None


def parse_gate(expression: str, *, document: type[Document] = KappaDocument) -> Gate:
    """Parse ``kappa>200``, ``groups[*].s >= 1e3``, ``schedule.direction != early``.

    Args:
        expression: A path (see `clcurv.report.paths`), an operator, a number or a word.
        document: The kind of report it will judge.

    Raises:
        UsageError: It does not parse, the report has no such value (near names are listed),
            or an order is asked of words.
    """
    match = _EXPRESSION.fullmatch(expression)
    if match is None or not match["value"]:
        raise UsageError(
            f"cannot read the gate {expression!r}",
            hint="write PATH OP VALUE in quotes, e.g. --fail-on 'kappa>200'",
        )
    limit = _limit(match["value"], expression)
    ordered = match["op"] not in {"==", "!="}
    if ordered and not isinstance(limit, float):
        raise UsageError(
            f"the gate {expression!r} needs a number after {match['op']}",
            hint="words can only be compared with == and !=",
        )
    return Gate(expression.strip(), parse_path(match["path"], document), match["op"], limit)


def parse_regression(text: str) -> float:
    """``10%`` or ``0.1`` -> 0.1.

    Raises:
        UsageError: Not a percentage; a bare number above 1 would be ambiguous.
    """
    try:
        body = text.strip()
        value = float(body[:-1]) / 100 if body.endswith("%") else float(body)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0) or ("%" not in text and value > 1):
        raise UsageError(f"--fail-on-regression {text}: not a percentage", hint="write it like 10%")
    return value


def evaluate(
    gates: Sequence[Gate],
    doc: Document,
    *,
    baseline: Document | None = None,
    regression: float | None = None,
    inconclusive: Policy = "fail",
    allow_generated: bool = False,
) -> Verdict:
    """Judge a report.

    Args:
        gates: From `parse_gate`.
        doc: The report.
        baseline: An earlier report of the same kind to compare with.
        regression: Allowed change for the worse, e.g. 0.1; see `clcurv.report.regression` and
            `clcurv.report.spectrum_regression`.
        inconclusive: ``pass``: an undecided gate does not touch the exit code.
        allow_generated: Judge a report on generated data, too.

    Raises:
        UsageError: Only one of `baseline` and `regression`.
    """
    if (baseline is None) != (regression is None):
        raise UsageError(
            "a baseline and an allowed regression go together",
            hint="give both --baseline old.json and --fail-on-regression 10%",
        )
    rules = rules_of(doc)
    outcomes = [_judge(gate, doc, rules) for gate in gates]
    proxy = rules.is_proxy()
    if baseline is not None and regression is not None:
        outcomes += rules.compare(baseline, regression)
        proxy = proxy or rules_of(baseline).is_proxy()
    if proxy and not allow_generated:
        outcomes = [_distrust(x) for x in outcomes]
    if not (doc.complete and (baseline is None or baseline.complete)):
        which = "baseline" if doc.complete else "report"
        reason = f"the {which} is partial: interrupted, or a part failed"
        update = {"outcome": "inconclusive", "reason": reason}
        outcomes = [x.model_copy(update=update) for x in outcomes]
    kinds = {x.outcome for x in outcomes}
    code: Literal[0, 10, 11] = 0
    if "fail" in kinds:
        code = FAILED
    elif "inconclusive" in kinds and inconclusive == "fail":
        code = INCONCLUSIVE
    return Verdict(exit_code=code, inconclusive=inconclusive, gates=tuple(outcomes))


def _limit(text: str, expression: str) -> float | str | bool | None:
    if text in _WORDS:
        return _WORDS[text]
    quoted = re.fullmatch(r"""(["'])(.*)\1""", text, re.DOTALL)
    if quoted:
        return quoted[2]
    try:
        value = float(text)
    except ValueError:
        if re.search(r"[<>=!]", text):
            raise UsageError(
                f"the gate {expression!r} has two operators", hint="give two --fail-on"
            ) from None
        return text
    if not math.isfinite(value):
        raise UsageError(f"the gate {expression!r} compares with {text}, which decides nothing")
    return value


def _distrust(outcome: GateOutcome) -> GateOutcome:
    reason = f"data are generated, a proxy; would be: {outcome.outcome} ({outcome.reason})"
    return outcome.model_copy(
        update={"outcome": "inconclusive", "reason": f"{reason}; --allow-generated judges them"}
    )


def _judge(gate: Gate, doc: Document, rules: Rules) -> GateOutcome:
    places = resolve(gate.path, doc)
    if not places:
        return GateOutcome(
            expression=gate.expression,
            outcome="pass" if gate.path.steps[-1] == ("item", None) else "inconclusive",
            reason=f"{gate.path.text} matches nothing in the report",
        )
    several = len(places) > 1
    if several:
        places = [x for x in places if not rules.is_beside_the_point(x)] or places
    judged = [_judge_one(gate, place, rules) for place in places]
    for kind in ("fail", "inconclusive", "pass"):
        chosen = [x for x in judged if x.outcome == kind]
        if chosen:
            more = f", and {len(chosen) - 1} more" if len(chosen) > 1 and kind != "pass" else ""
            if kind == "pass" and several:
                return chosen[0].model_copy(
                    update={
                        "reason": f"true for none of {len(chosen)}",
                        "value": None,
                        "low": None,
                        "high": None,
                    }
                )
            return chosen[0].model_copy(update={"reason": chosen[0].reason + more})
    raise AssertionError("every place has an outcome")


def _judge_one(gate: Gate, place: Found, rules: Rules) -> GateOutcome:
    def outcome(kind: Outcome, reason: str) -> GateOutcome:
        known = place.value if isinstance(place.value, str | int | float) else None
        return GateOutcome(
            expression=gate.expression, outcome=kind, reason=reason, value=known, low=low, high=high
        )

    low, high = rules.interval(place)
    value, test = place.value, _OPERATORS[gate.op]
    if place.problem:
        return outcome("inconclusive", place.problem)
    if gate.limit is None:
        true = test(value, None)
        return outcome("fail" if true else "pass", f"{place.label} is {_show(value)}")
    if doubt := rules.doubt(place, gate.limit):
        return outcome("inconclusive", f"{place.label}: {doubt}")
    if value is None:
        return outcome("inconclusive", f"{place.label} is null")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(gate.limit, float) and not is_number:
        return outcome("inconclusive", f"{place.label} is {_show(value)}, not a number")
    text = f"{place.label} is {_show(value)}"
    if low is None or gate.op in {"==", "!="}:
        return outcome("fail" if test(value, gate.limit) else "pass", text)
    top = math.inf if high is None else high
    text += f", interval {number(low)} to {'∞' if high is None else number(high)}"
    ends = {test(low, gate.limit), test(top, gate.limit)}
    if len(ends) == 2:
        return outcome("inconclusive", f"{text} straddles the limit")
    return outcome("fail" if ends.pop() else "pass", text)


def _show(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, int):
        return str(value)
    return number(value) if isinstance(value, float) else repr(value)
