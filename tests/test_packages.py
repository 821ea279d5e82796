"""Files of installed packages."""

from importlib import metadata

import pytest

from loes.packages import package_file


def test_package_file_finds_a_file_or_names_the_version():
    path = package_file("pytest", "pytest/__init__.py")  # not _pytest/__init__.py
    assert path.samefile(pytest.__file__)
    version = metadata.version("pytest")
    with pytest.raises(FileNotFoundError, match=f"pytest {version} has no file model.bin"):
        package_file("pytest", "model.bin")
