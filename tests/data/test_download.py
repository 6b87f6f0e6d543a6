"""Downloads from a server on this machine: whole or not at all, whatever goes wrong."""

from __future__ import annotations

import errno
import gzip
import hashlib
import io
import re
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hsfl.data import available, official_files
from hsfl.data.download import get
from hsfl.data.official_files import read
from hsfl.data.sources import BUILT_IN, SOURCES
from hsfl.errors import HsflError, MissingExtraError
from tests.data.conftest import cifar_files, mnist_files, put

IMAGES = "train-images-idx3-ubyte.gz"


class Server(ThreadingHTTPServer):
    """Serves `contents`; what is in `cut` breaks off half way."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents: dict[str, bytes] = {}
        self.cut: set[str] = set()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.asked.append(name)
        data = self.server.contents.get(name)
        if data is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if name in self.server.cut else data)

    def log_message(self, *message: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as server:
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        mnist = {f"{name}.gz": gzip.compress(data) for name, data in mnist_files().items()}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            for name, data in cifar_files().items():
                _add(tar, f"cifar-10-batches-bin/{name}", data)
        server.contents = mnist | {"cifar-10-binary.tar.gz": buffer.getvalue()}
        publish(monkeypatch, server)
        yield server
        server.shutdown()
        thread.join()


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def publish(monkeypatch: pytest.MonkeyPatch, server: Server) -> None:
    """Make what the server has the official contents."""
    for name in ("mnist", "cifar10"):
        sums = {file: hashlib.sha256(server.contents[file]).hexdigest() for file in SOURCES[name].downloads}
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], url=server.url, downloads=sums))


def left(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_download_has_the_official_layout(
    server: Server, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = get(name, tmp_path)
    assert place == tmp_path / {"mnist": "MNIST/raw", "cifar10": "cifar-10-batches-bin"}[name]
    contents = cifar_files() if name == "cifar10" else {n: d for n, d in server.contents.items() if n.endswith("te.gz")}
    assert {path.name: path.read_bytes() for path in place.iterdir()} == contents
    assert dict(available(tmp_path))[name] == place
    assert f"{name} is now in {place}" in capsys.readouterr().err
    asked = len(server.asked)
    assert get(name, tmp_path) == place and len(server.asked) == asked
    assert f"{name} is already in {place}" in capsys.readouterr().err
    get(name, tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")


def test_whatever_is_published_comes_over_https_and_has_a_sha256_sum() -> None:
    published = [source for source in SOURCES.values() if source.downloads]
    assert len(published) == 3 and all(source.url.startswith("https://") for source in published)
    sums = [sha256 for source in published for sha256 in source.downloads.values()]
    assert len(set(sums)) == 9 and all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in sums)


def test_the_cache_is_the_default_place(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("official_files", "download"):
        monkeypatch.setattr(f"hsfl.data.{module}.cache_folder", lambda: tmp_path / "new" / "cache")
    assert get("mnist", progress=False) == tmp_path / "new" / "cache" / "MNIST/raw"
    assert dict(available(None))["mnist"] == tmp_path / "new" / "cache" / "MNIST/raw"


def test_a_copy_in_another_layout_is_enough(server: Server, tmp_path: Path) -> None:
    put(tmp_path, mnist_files())
    assert get("mnist", tmp_path, progress=False) == tmp_path and not server.asked


def test_a_damaged_copy_is_replaced(server: Server, tmp_path: Path) -> None:
    place = put(tmp_path / "MNIST/raw", mnist_files(), compress=True)
    (place / IMAGES).write_bytes(server.contents[IMAGES][:-20])
    assert get("mnist", tmp_path, progress=False) == place
    assert (place / IMAGES).read_bytes() == server.contents[IMAGES]


@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "t10k-labels-idx1-ubyte.gz"), ("cifar10", "cifar-10-binary.tar.gz")]
)
@pytest.mark.parametrize("trouble", ["404", "refused", "cut", "changed"])
def test_a_failed_download_leaves_nothing(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, trouble: str
) -> None:
    whole = server.contents[file]
    if trouble == "404":
        del server.contents[file]
    elif trouble == "refused":
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], url="http://127.0.0.1:9/"))
        file = next(iter(SOURCES[name].downloads))
    elif trouble == "cut":
        server.cut.add(file)
    else:
        server.contents[file] = whole[:-1] + bytes([whole[-1] ^ 1])
    with pytest.raises(HsflError) as error:
        get(name, tmp_path, progress=False)
    message = str(error.value)
    reason = {"404": "404", "refused": "refused", "cut": "", "changed": "sum of what came"}[trouble]
    assert f"{name} could not be downloaded from {SOURCES[name].url}{file} (" in message and reason in message
    assert str(tmp_path / SOURCES[name].folders[0]) in message and "HSFL_DATA" in message
    assert all(SOURCES[name].url + download in message for download in SOURCES[name].downloads)
    assert left(tmp_path) == [] and dict(available(tmp_path))[name] is None
    if trouble != "refused":  # once the server works again, so does the command
        server.contents[file] = whole
        server.cut.clear()
        read(name, get(name, tmp_path, progress=False))


def test_an_interrupt_leaves_nothing(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tarfile.TarFile, "extractall", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get("cifar10", tmp_path, progress=False)
    assert left(tmp_path) == []


@pytest.mark.parametrize(("step", "in_place"), [("hsfl.data.download.read", 0), ("os.replace", 2)])
def test_a_killed_download_does_not_look_complete(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, in_place: int
) -> None:
    """The process ends without any cleaning up, when all files have come and none or some are in place."""
    calls = 0

    def die(*arguments: Path) -> None:
        nonlocal calls
        calls += 1
        if calls > in_place:
            raise SystemExit
        arguments[0].rename(arguments[1])

    with monkeypatch.context() as patch:
        patch.setattr(tempfile.TemporaryDirectory, "__exit__", lambda self, *error: self._finalizer.detach() and None)
        patch.setattr(step, die)
        with pytest.raises(SystemExit):
            get("mnist", tmp_path, progress=False)
    place = tmp_path / "MNIST/raw"
    assert len(left(tmp_path)) == 4 and len([path for path in place.iterdir() if path.is_file()]) == in_place
    assert dict(available(tmp_path))["mnist"] is None
    assert get("mnist", tmp_path, progress=False) == place
    read("mnist", place)


def test_an_archive_cannot_write_elsewhere(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        _add(tar, "../../../outside", b"x")
    server.contents["cifar-10-binary.tar.gz"] = buffer.getvalue()
    publish(monkeypatch, server)
    with pytest.raises(HsflError, match="cannot be unpacked"):
        get("cifar10", tmp_path / "a" / "b", progress=False)
    assert left(tmp_path) == []


def test_a_place_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HsflError, match="cannot be written"):
        get("mnist", tmp_path / "file", progress=False)


def test_a_disk_that_fills_up_is_no_fault_of_the_network(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("pooch.core.shutil.move", full)
    with pytest.raises(HsflError, match=r"MNIST/raw: cannot be written \(No space left on device\)"):
        get("mnist", tmp_path, progress=False)
    assert left(tmp_path) == []


def test_names(tmp_path: Path) -> None:
    assert get("mnist-mini", tmp_path, progress=False) == BUILT_IN
    with pytest.raises(HsflError, match="no data set 'imagenet'; known are mnist-mini, mnist"):
        get("imagenet", tmp_path)


def test_without_the_package_that_downloads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "pooch", None)
    monkeypatch.delenv("HSFL_DATA", raising=False)
    assert official_files.cache_folder() is None and official_files.search_folders(tmp_path) == [tmp_path]
    for folder in (None, tmp_path):
        with pytest.raises(MissingExtraError, match=r"hsfl\[torch\]"):
            get("mnist", folder, progress=False)
    assert left(tmp_path) == []
