"""Files of installed packages, and packages that are fetched: whole and checked, or not at all."""

import base64
import hashlib
import io
import subprocess
import tarfile
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

import pytest

from loes import packages
from loes.packages import debian_folder, debian_version, npm_folder, package_file


def test_package_file_finds_a_file_or_names_the_version():
    path = package_file("pytest", "pytest/__init__.py")  # not _pytest/__init__.py
    assert path.samefile(pytest.__file__)
    version = metadata.version("pytest")
    with pytest.raises(FileNotFoundError, match=f"pytest {version} has no file model.bin"):
        package_file("pytest", "model.bin")


def test_the_cache_is_where_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.setenv("LOES_CACHE", str(tmp_path))
    assert packages.cache_folder() == tmp_path
    monkeypatch.delenv("LOES_CACHE")
    assert packages.cache_folder().name == "loes"


def archive_of(files: dict[str, str]) -> bytes:
    """Return a gzipped tar of texts, whatever their names say."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def integrity_of(archive: bytes) -> str:
    return f"sha512-{base64.b64encode(hashlib.sha512(archive).digest()).decode()}"


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Put the commands' doubles in their place; a test says what they do and sees the calls."""
    monkeypatch.setenv("LOES_CACHE", str(tmp_path / "cache"))
    doubles, calls = {}, []

    def run(command, cwd, **options):
        calls.append(command)
        if command[0] not in doubles:
            raise FileNotFoundError(command[0])
        doubles[command[0]](command, Path(cwd))

    monkeypatch.setattr(packages.subprocess, "run", run)
    doubles["calls"] = calls
    return doubles


def apt_get(command, folder):
    (folder / f"{command[-1]}_1%3a2-3_all.deb").write_text("packed")


def dpkg_deb(command, folder):
    assert (folder / command[2]).read_text() == "packed"
    (folder / command[3]).mkdir()
    (folder / command[3] / "sound.wav").write_text("unpacked")


def fetch_debian():
    return debian_folder("some-sounds", megabytes=7, twin="some/set")


def left_behind(tmp_path) -> list[str]:
    """Return what a fetch left in the cache, but for the empty file that is its lock."""
    names = [path.name for path in (tmp_path / "cache").glob("*/*")]
    return [name for name in names if not name.endswith(".lock")]


def test_a_debian_package_is_fetched_once(commands, tmp_path, capsys):
    commands |= {"apt-get": apt_get, "dpkg-deb": dpkg_deb}
    folder = fetch_debian()
    assert (folder / "sound.wav").read_text() == "unpacked"
    assert debian_version(folder) == "1:2-3"
    assert left_behind(tmp_path) == [folder.name]
    assert "fetching some-sounds, 7 MB" in capsys.readouterr().err
    assert fetch_debian() == folder
    assert [command[0] for command in commands["calls"]] == ["apt-get", "dpkg-deb"]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("missing", ["apt-get", "dpkg-deb"])
def test_without_debians_tools_the_hub_is_named(commands, tmp_path, missing):
    commands |= {"apt-get": apt_get, "dpkg-deb": dpkg_deb}
    del commands[missing]
    with pytest.raises(FileNotFoundError, match=f"{missing} is missing here.*some/set") as error:
        fetch_debian()
    assert "\n" not in str(error.value)
    assert left_behind(tmp_path) == []


def test_a_failed_command_says_why(commands, tmp_path):
    def unknown(command, folder):
        raise subprocess.CalledProcessError(100, command, stderr="W: no sandbox\nE: not located\n")

    commands |= {"apt-get": unknown, "dpkg-deb": dpkg_deb}
    with pytest.raises(FileNotFoundError, match=r"`apt-get download some-sounds` failed \(E: not"):
        fetch_debian()
    assert left_behind(tmp_path) == []


def test_what_a_killed_process_left_is_not_taken_for_a_package(commands, tmp_path):
    partial = tmp_path / "cache" / "debian" / "some-sounds.partial"
    partial.mkdir(parents=True)
    (partial / "some-sounds_0-1_all.deb").write_text("half")
    commands |= {"apt-get": apt_get, "dpkg-deb": dpkg_deb}
    assert debian_version(fetch_debian()) == "1:2-3"
    assert not partial.exists()


def test_what_another_process_fetched_meanwhile_is_taken(commands, monkeypatch, tmp_path):
    other = tmp_path / "cache" / "debian" / "some-sounds_9_all"

    @contextmanager
    def lock_of_another(_path):
        other.mkdir(parents=True)
        yield

    monkeypatch.setattr(packages, "FileLock", lock_of_another)
    assert fetch_debian() == other
    assert commands["calls"] == []


def test_an_interrupted_download_leaves_nothing(commands, tmp_path):
    def interrupted(command, folder):
        apt_get(command, folder)
        raise KeyboardInterrupt

    commands |= {"apt-get": interrupted}
    with pytest.raises(KeyboardInterrupt):
        fetch_debian()
    assert left_behind(tmp_path) == []


def fetch_npm(commands, archive, integrity=None):
    def npm(command, folder):
        assert command[-1] == "pictures@1.2.3"
        (folder / "pictures-1.2.3.tgz").write_bytes(archive)

    commands["npm"] = npm
    return npm_folder("pictures", "1.2.3", integrity or integrity_of(archive), megabytes=1)


def test_an_npm_package_is_fetched_once(commands, tmp_path):
    archive = archive_of({"package/img/a.png": "picture", "package/list.json": "[]"})
    folder = fetch_npm(commands, archive)
    assert (folder / "img" / "a.png").read_text() == "picture"
    assert left_behind(tmp_path) == ["pictures-1.2.3"]
    assert fetch_npm(commands, archive) == folder
    assert len(commands["calls"]) == 1


def test_an_npm_package_of_another_integrity_is_refused(commands, tmp_path):
    expected = integrity_of(archive_of({"package/a": "the real one"}))
    with pytest.raises(ValueError, match=r"pictures-1.2.3.tgz has integrity sha512-.*expected sha"):
        fetch_npm(commands, archive_of({"package/a": "another"}), expected)
    assert left_behind(tmp_path) == []


@pytest.mark.parametrize("name", ["package/../../../../escaped", "../../../escaped"])
def test_an_archive_cannot_write_outside_its_folder(commands, tmp_path, name):
    with pytest.raises(tarfile.OutsideDestinationError):
        fetch_npm(commands, archive_of({"package/a": "fine", name: "escaped"}))
    assert not list(tmp_path.rglob("escaped"))
    assert left_behind(tmp_path) == []


def test_a_link_out_of_the_folder_is_refused(commands, tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        link = tarfile.TarInfo("package/link")
        link.type, link.linkname = tarfile.SYMTYPE, "../../../../secret"
        tar.addfile(link)
    with pytest.raises(tarfile.LinkOutsideDestinationError):
        fetch_npm(commands, buffer.getvalue())
    assert left_behind(tmp_path) == []


def test_without_npm_it_says_what_to_install(commands):
    with pytest.raises(FileNotFoundError, match=r"npm is missing here; install Node\.js"):
        npm_folder("pictures", "1.2.3", "sha512-", megabytes=1)
