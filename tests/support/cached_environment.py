"""Programs of others in an environment of their own, installed once per set of versions."""

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from ddp_hpc.system.files import user_cache


def installed(pins: Path, finish: Callable[[Path], None] = lambda folder: None, more: str = "") -> Path:
    """Return the folder of an environment with the packages that a file names; skip where there is no package index.

    `finish` is called once, on the new folder; `more` says what it does, so that another one makes another environment.
    """
    name = hashlib.sha256(pins.read_bytes() + more.encode()).hexdigest()[:10]
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    folder = user_cache() / "ddp-hpc-tests" / f"of-{pins.stem}-{version}-{name}"
    if (folder / "whole").is_file():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile", "-r", pins]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(folder)
        pytest.skip(f"no package index to install {pins.name} from: {done.stderr.strip().splitlines()[-1]}")
    finish(folder)
    (folder / "whole").touch()
    return folder
