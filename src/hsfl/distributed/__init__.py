"""Running a scenario: every entity a process of its own, on this machine or on others, over streams."""

from importlib.util import find_spec

from hsfl.errors import MissingExtraError

if any(find_spec(name) is None for name in ("torch", "google.protobuf")):
    raise MissingExtraError("Running", "run")
