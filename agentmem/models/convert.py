"""GGUF to safetensors, once: GGUF takes half a minute to load every time, safetensors a second.

Runs as a process of its own (`python -m agentmem.models.convert GGUF FOLDER`), so that its memory
goes back and the libraries' progress bars stay off the screen.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from agentmem.errors import ModelCorrupt

CONVERT_SECONDS = 1800.0


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write a GGUF file's weights as bf16 safetensors, with config and tokenizer, to a folder.

    Raises:
        ModelCorrupt: the file cannot be read as a model.
    """
    package_root = Path(__file__).parents[2]
    search_path = [str(package_root), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search_path),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
    }
    try:
        result = subprocess.run(
            [sys.executable, "-m", __name__, str(gguf), str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=CONVERT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelCorrupt(
            f"{gguf.name} was not converted within {CONVERT_SECONDS:.0f} s."
        ) from error
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or [f"exit code {result.returncode}"]
        raise ModelCorrupt(f"Cannot convert {gguf.name}: {lines[-1]}")


def main(gguf: Path, folder: Path) -> None:
    """Do it in this process."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    loaded = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32
    )
    config = loaded.config
    # A model that came from GGUF refuses to be saved; a fresh one with its weights does not.
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
