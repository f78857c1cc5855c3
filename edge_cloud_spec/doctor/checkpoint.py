"""Whether a model directory is whole."""

from __future__ import annotations

from pathlib import Path

from ..errors import UserError
from .finding import FAIL, OK, Finding

MODEL_FILES = (  # one of each
    ("config.json",),
    ("tokenizer.json", "vocab.json"),
    ("preprocessor_config.json", "processor_config.json"),
    ("model.safetensors", "model.safetensors.index.json"),
)


def check_model(name: str, directory: str) -> Finding:
    """Whether a model directory has its files, and its weights are whole; they are not loaded."""
    path = Path(directory).expanduser()
    if not path.is_dir():
        advice = f"give a directory with --{name}; a hub name is fetched at its first use"
        return Finding(name, FAIL, f"there is no directory {directory}", advice)
    missing = [
        choices[0]
        for choices in MODEL_FILES
        if not any((path / choice).is_file() for choice in choices)
    ]
    if missing:
        advice = "copy what is missing from the checkpoint"
        return Finding(name, FAIL, f"{path} lacks {', '.join(missing)}", advice)
    try:
        files = _open_weights(path)
    except ImportError as error:
        return Finding(
            name, FAIL, f"cannot be looked into ({error})", "install the libraries first"
        )
    except UserError as error:
        advice = "copy it anew from the checkpoint; the embedded pair's comes with this package"
        return Finding(name, FAIL, str(error), advice)
    size = sum(file.stat().st_size for file in files) / 2**20
    return Finding(name, OK, f"{path}, {size:.1f} MiB")


def _open_weights(directory: Path) -> list[Path]:
    """The files of a model's weights and exits; raises UserError where one is not whole."""
    from safetensors import SafetensorError, safe_open

    from ..models.load import weight_files

    files = [*weight_files(directory), *sorted(directory.glob("exits/*.safetensors"))]
    for file in files:
        try:
            with safe_open(file, "np") as tensors:  # compares the header with the file's length
                tensors.keys()
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is damaged or cut short ({error})") from None
    return files
