"""The page as a whole: a server with the answers about a scenario, about runs, or both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hsfl.errors import HsflError
from hsfl.explorer.planning import PlanAsked, PlanPage, SweepAsked
from hsfl.explorer.server import Answer, Gone, PageServer
from hsfl.explorer.watching import RunsAsked, RunsPage

A = TypeVar("A", bound=PlanAsked)


def serve(
    plans: PlanPage | None, runs: RunsPage | None = None, *, host: str, port: int, framed: bool = False
) -> PageServer:
    """A server that has not begun to serve."""
    begin = {"plans": None if plans is None else plans.start(), "runs": runs is not None}
    answers: dict[str, Answer] = {"start": lambda *_: begin}
    if plans is not None:
        answers["plan"] = _answer(plans, PlanAsked, plans.plan)
        answers["compare"] = _answer(plans, PlanAsked, plans.compare)
        answers["sweep"] = _answer(plans, SweepAsked, plans.sweep)
        answers["file"] = _answer(plans, PlanAsked, plans.file)
    if runs is not None:
        watched = runs
        answers["runs"] = lambda data, _: watched.runs(RunsAsked.model_validate_json(data))
    return PageServer(answers, host, port, framed=framed)


def _answer(plans: PlanPage, kind: type[A], answer: Callable[[A, Gone], dict[str, Any]]) -> Answer:
    """Check a request, and answer it; what a user did wrong is a sentence and the field it is about."""

    def answered(data: bytes, gone: Gone) -> dict[str, Any]:
        asked = kind.model_validate_json(data)
        try:
            return answer(asked, gone)
        except HsflError as error:
            return plans.wrong(error, asked)

    return answered
