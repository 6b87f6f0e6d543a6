"""The page of the paper's scenario, served."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import hsfl
from hsfl.explorer.planning import PlanPage
from hsfl.explorer.server import PageServer
from hsfl.explorer.site import serve


@pytest.fixture(scope="module")
def server() -> Iterator[PageServer]:
    found = serve(PlanPage(hsfl.load_scenario("paper"), "paper"), host="127.0.0.1", port=0)
    found.start()
    yield found
    found.close()
