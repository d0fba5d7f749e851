"""`native build` and `native path`: what they leave, and what they say where a machine lacks something."""

from __future__ import annotations

from pathlib import Path

import pytest
import redis

from echomq_worker import module
from echomq_worker.cli import main
from tests.support.native import module as needs_compiler
from tests.support.valkey import OwnServer

# They wait for a compiler, and no event loop is near.
pytestmark = pytest.mark.blocks


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own; nobody waits for the optimizer."""
    monkeypatch.setenv("CFLAGS", "-O0")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `echomq-worker native …`."""
    code = main(["native", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_built_it_is_found_and_a_server_loads_it(
    capsys: pytest.CaptureFixture[str], cache: Path, own_server: OwnServer
) -> None:
    """`path` knows nothing before `build`, and the same path after it; nothing else is left beside it."""
    needs_compiler()
    assert run(capsys, "path") == (
        1,
        "",
        "echomq-worker: the module is not built yet, expected echomq-worker native build first\n",
    )
    code, out, err = run(capsys, "build")
    assert (code, err) == (0, "")
    assert run(capsys, "path") == (0, out, "")
    built = Path(out.strip())
    assert built.is_relative_to(cache)
    assert [path.name for path in built.parent.iterdir()] == ["emq.so"]
    server = own_server(args=["--loadmodule", str(built)])
    client = redis.Redis(port=server.port)
    assert [one[b"name"] for one in client.module_list() if one[b"name"] == b"emq"] == [b"emq"]
    client.close()


def test_to_a_folder_of_choice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The folder is made, the path printed; a module that is there is replaced by a new file."""
    needs_compiler()
    there = tmp_path / "a" / "b"
    there.mkdir(parents=True)
    (there / "emq.so").write_text("old")
    loaded = (there / "emq.so").stat().st_ino
    assert run(capsys, "build", "--to", str(there)) == (0, f"{there}/emq.so\n", "")
    assert (there / "emq.so").stat().st_ino != loaded


def test_no_compiler(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2, and a line that says what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    code, out, err = run(capsys, "build")
    assert (code, out) == (2, "")
    assert (
        err == "echomq-worker: building the module needs make: expected apt-get install gcc libc6-dev make, or alike\n"
    )


def test_a_compiler_that_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1, its first error on the line, and nothing half-written."""
    needs_compiler()
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'api.c:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    code, out, err = run(capsys, "build", "--to", str(tmp_path / "to"))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("echomq-worker: building the module: api.c:1: error: no such thing")
    assert list((tmp_path / "to").iterdir()) == []


def test_a_folder_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    """2, with the folder and why."""
    assert run(capsys, "build", "--to", "/dev/null/there") == (
        2,
        "",
        "echomq-worker: /dev/null/there: Not a directory, expected a folder that can be written\n",
    )


def test_a_package_without_sources(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2: it says what was expected."""
    monkeypatch.setattr(module, "files", lambda _name: tmp_path)
    code, _out, err = run(capsys, "path")
    assert code == 2
    assert "expected a wheel or sdist of this project" in err
