"""The command that opens the page: explore."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from typing import Annotated

import typer

from hsfl import api
from hsfl.cli.common import DebugOption, SetOption, app, overridden, show, warnings_in_one_line
from hsfl.cli.trust import TrustOption


@app.command()
@warnings_in_one_line()
def explore(
    scenario: Annotated[
        str, typer.Argument(help="A scenario file, or a built-in scenario by name (hsfl scenarios).")
    ] = "paper",
    set_: SetOption = None,
    host: Annotated[
        str, typer.Option(help="The address to serve at; another one lets other computers see the page.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 0,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Open a page in the browser on which a plan answers while fields move; Ctrl-C ends it."""
    from hsfl.explorer.planning import PlanPage
    from hsfl.explorer.site import serve

    loaded = api.load_scenario(scenario, overridden({}, None, set_))
    server = serve(PlanPage(loaded, None if set_ else scenario), host=host, port=port)
    show(f"{server.url}", "Ctrl-C ends it; the address holds a token: whoever has it can use the page.")
    if browser:
        webbrowser.open(server.url)
    with suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
