"""Runs checkers on changed packages, each in a fork of a process that has imported nothing of the spec.

A fork starts in milliseconds, and what was imported in one never shows in another. The process compiles
the spec beforehand, so that a fork compiles what has changed and nothing else.
"""

import contextlib
import importlib
import importlib.machinery
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from spec.mutants import child
from spec.mutants.mutant import ROOT, Mutant

PRELOADED = ("fractions", "hypothesis.stateful", "random", "z3")
"""What the checkers import from elsewhere; one that is missing is told by the checker that wants it."""
GRACE_S = 5.0
"""A checker stops by itself at its deadline; this much later it is killed."""
MAX_MEMORY_BYTES = 6 << 30


class Nursery:
    """A process that runs one checker at a time; several may be used at once from threads."""

    def __init__(self) -> None:
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONHASHSEED": "0"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "spec.mutants.nursery"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            text=True,
        )

    def check(
        self, checker: str, folder: Path, mutant: Mutant, deadline_s: float, only: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """Run a checker on the changed package in ``folder`` and return what ``child.check`` tells.

        A checker that had to be killed is told as ``timeout``.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        order = [checker, only, mutant.path, mutant.source, deadline_s, str(folder)]
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        found: dict[str, Any] = json.loads(answer) if answer else {"error": "the nursery died"}
        return found

    def __enter__(self) -> "Nursery":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()


class _Loader(importlib.machinery.SourceFileLoader):
    """Loads modules; of two with the same text and name the second is not compiled again."""

    compiled: dict[tuple[str, bytes], CodeType] = {}

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code of a module."""
        text = self.get_data(self.get_filename(fullname))
        return self.compiled.get((fullname, text)) or super().get_code(fullname)


def _compile_ahead() -> None:
    for package in ("vtoken_ref", "spec"):
        for path in ROOT.joinpath(package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            with contextlib.suppress(SyntaxError):
                text = path.read_bytes()
                _Loader.compiled[name, text] = compile(text, str(path), "exec", dont_inherit=True)


def serve() -> None:
    """Take orders from standard input until it ends."""
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, lambda number, frame: sys.exit(0))
    _compile_ahead()
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in sys.stdin:
        print(_in_fork(*json.loads(line)), flush=True)


def _in_fork(
    checker: str, only: list[str], changed: str, text: str | None, deadline_s: float, folder: str
) -> str:
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reader)
        _prepare(folder)
        with os.fdopen(writer, "w") as pipe:
            pipe.write(child.check(checker, tuple(only), changed, text, deadline_s))
        os._exit(0)
    os.close(writer)
    try:
        answer = _read(reader, time.monotonic() + deadline_s + GRACE_S)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        status = os.waitpid(pid, 0)[1]
    if answer is None:
        return json.dumps({"timeout": True, "seconds": deadline_s + GRACE_S})
    return answer or json.dumps({"error": f"the checker died with status {status}", "seconds": 0})


def _prepare(folder: str) -> None:
    """Make the changed package the one that is imported, here and in processes started from here."""
    os.setpgid(0, 0)
    for kind in (signal.SIGTERM, signal.SIGINT):
        signal.signal(kind, signal.SIG_DFL)
    limit = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MAX_MEMORY_BYTES if limit == resource.RLIM_INFINITY else min(limit, MAX_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (memory, limit))
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
    for name in [name for name in sys.modules if name.split(".")[0] in ("spec", "vtoken_ref")]:
        del sys.modules[name]
    sys.path.insert(0, folder)
    kinds = importlib.machinery
    sys.path_hooks.insert(
        0,
        kinds.FileFinder.path_hook(
            (kinds.ExtensionFileLoader, kinds.EXTENSION_SUFFIXES),
            (_Loader, kinds.SOURCE_SUFFIXES),
            (kinds.SourcelessFileLoader, kinds.BYTECODE_SUFFIXES),
        ),
    )
    sys.path_importer_cache.clear()
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ["PYTHONPATH"]])


def _read(reader: int, until: float) -> str | None:
    """Return everything that comes until the other side closes; None when that is too late."""
    parts: list[bytes] = []
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([reader], [], [], left)[0]:
            return None
        part = os.read(reader, 1 << 16)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)


if __name__ == "__main__":
    serve()
