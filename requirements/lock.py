"""Pin base.txt and test.txt, with the hashes of every wheel, from base.in and test.in.

Needs pip-tools, which it installs in a folder of its own. torch is pinned in torch.txt by version,
because its builds differ by machine, and left out here.
"""

from __future__ import annotations

import subprocess
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = (
    "--quiet --generate-hashes --allow-unsafe --no-header --no-annotate --strip-extras "
    "--no-emit-index-url --no-emit-find-links --no-emit-options --no-emit-trusted-host"
).split()
HEADER = "# {what}, pinned and hashed. Made by\n# `make lock` from requirements/{source}.\n"


def main() -> None:
    """Write both files."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder / "tools", with_pip=True)
        python = folder / "tools" / "bin" / "python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "pip-tools"], check=True)
        base = compiled(python, folder, ["torch.txt", "base.in"], "base")
        base = {package: lines for package, lines in base.items() if package != "torch"}
        write("base.txt", "Everything agentmem needs but torch", "base.in", base)
        test = compiled(python, folder, ["torch.txt", "base.txt", "test.in"], "test")
        beside = {
            package: lines
            for package, lines in test.items()
            if package not in base and package != "torch"
        }
        write("test.txt", "What the tests and the linters need beside base.txt", "test.in", beside)


def compiled(python: Path, folder: Path, sources: list[str], name: str) -> dict[str, list[str]]:
    """The pinned lines of each package that the sources need."""
    output = folder / f"{name}.txt"
    command = [str(python), "-m", "piptools", "compile", *FLAGS, "--output-file", str(output)]
    subprocess.run([*command, *(str(HERE / source) for source in sources)], check=True)
    packages: dict[str, list[str]] = {}
    for line in output.read_text("utf-8").splitlines():
        if line and not line.startswith((" ", "#")):
            packages[line.split("==")[0]] = []
        if line and not line.startswith("#"):
            packages[next(reversed(packages))].append(line)
    return packages


def write(name: str, what: str, source: str, packages: dict[str, list[str]]) -> None:
    """Write a requirements file."""
    lines = [line for block in packages.values() for line in block]
    text = HEADER.format(what=what, source=source) + "\n".join(lines) + "\n"
    (HERE / name).write_text(text, "utf-8")


if __name__ == "__main__":
    main()
