"""The command that opens the page: explore."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from hsfl import api
from hsfl.cli.common import DebugOption, SetOption, app, overridden, show, warnings_in_one_line
from hsfl.cli.trust import TrustOption
from hsfl.errors import HsflError


@app.command()
@warnings_in_one_line()
def explore(
    places: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SCENARIO | RUN...]",
            help="A scenario file or a built-in scenario (default: paper); or folders of runs, or with runs in them.",
        ),
    ] = None,
    set_: SetOption = None,
    host: Annotated[
        str, typer.Option(help="The address to serve at; another one lets other computers see the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Open a page in the browser: a plan that answers while fields move, or runs as they train; Ctrl-C ends it."""
    from hsfl.explorer.planning import PlanPage
    from hsfl.explorer.site import serve
    from hsfl.explorer.watching import RunsPage

    folders = [Path(place) for place in places or [] if Path(place).is_dir()]
    scenarios = [place for place in places or [] if not Path(place).is_dir()] or ([] if folders else ["paper"])
    if len(scenarios) > 1:
        raise HsflError(f"{scenarios[1]}: one scenario can be explored at a time, and it is neither a run; give one")
    plans = None
    for scenario in scenarios:
        loaded = api.load_scenario(scenario, overridden({}, None, set_))
        plans = PlanPage(loaded, None if set_ else scenario)
    server = serve(plans, RunsPage(folders) if folders else None, host=host, port=port)
    show(f"{server.url}", "Ctrl-C ends it; the address holds a token: whoever has it can use the page.")
    if browser:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
