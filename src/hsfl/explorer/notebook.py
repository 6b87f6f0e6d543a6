"""The page beside a notebook, or any other Python: served from a thread of this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from hsfl import api
from hsfl.errors import HsflError
from hsfl.explorer.planning import PlanPage
from hsfl.explorer.site import serve
from hsfl.explorer.watching import RunsPage
from hsfl.runs.reading import Run
from hsfl.scenario.scenario import Scenario


class Explorer:
    """A page that is being served: a notebook shows it, `url` opens it elsewhere, `close` ends it."""

    def __init__(self, plans: PlanPage | None, runs: RunsPage | None, port: int, height: int) -> None:
        self._server = serve(plans, runs, host="127.0.0.1", port=port, framed=True)
        self._height = height
        self._server.start()

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return self._server.url

    def close(self) -> None:
        """Serve the page no longer."""
        self._server.close()

    def __repr__(self) -> str:
        return f"<hsfl explore at {self.url}>"

    def _repr_html_(self) -> str:
        source = escape(self.url)
        return f'<iframe src="{source}" title="hsfl explore" width="100%" height="{self._height}"></iframe>'


def explore(
    what: api.SomeScenario | Run | Sequence[Run | str | Path] = "paper", *, port: int = 0, height: int = 900
) -> Explorer:
    """Open the page of hsfl explore from Python: the last line of a notebook's cell shows it.

    `what` is a scenario, as `hsfl.plan` takes one; or a run, the folder of one or of several, or a list
    of these. The page is served on this machine only, at a free port unless one is given, until `close` or the end of
    Python.
    """
    if isinstance(what, Mapping):
        what = api.load_scenario(what)
    if isinstance(what, Scenario):
        return Explorer(PlanPage(what, None), None, port, height)
    places = [what] if isinstance(what, str | Path | Run) else list(what) if isinstance(what, Sequence) else []
    if not places or not all(isinstance(place, str | Path | Run) for place in places):
        raise HsflError(f"hsfl.explore({what!r}): give a scenario, a run, or the folders of runs")
    folders = [place.folder if isinstance(place, Run) else Path(place) for place in places]
    if len(places) == 1 and not folders[0].is_dir():
        name = str(what)
        return Explorer(PlanPage(api.load_scenario(name), name), None, port, height)
    return Explorer(None, RunsPage(folders), port, height)
