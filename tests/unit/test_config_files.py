"""Files named in a config, and what `llm-guard check` reports about them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from llm_guard.cli.main import main
from llm_guard.tls import expires_at
from tests.fakes.certificates import EXPIRED, Authority

CONFIG = """\
server:
  tls:
    cert: {cert}
    key: {key}
upstreams:
  one: {{dialect: openai, base_url: "https://h/v1", api_key_file: {secret}, tls: {{ca: {ca}}}}}
models: {{m: {{deployments: [{{upstream: one}}]}}}}
"""

Files = dict[str, str]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    authority, secret = Authority(tmp_path), tmp_path / "secret"
    secret.write_text("sk-secret")
    return {**authority.pair("one"), "secret": str(secret), "ca": str(authority.file)}


def check(tmp_path: Path, files: Files) -> tuple[int, str]:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(**files))
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    return result.exit_code, result.output.replace(str(path), "FILE")


def test_good_files_are_well(tmp_path: Path, files: Files) -> None:
    code, output = check(tmp_path, files)
    assert (code, "sk-secret" in output, ": server.tls" in output) == (0, False, False)


def _other_key(files: Files) -> None:
    folder = Path(files["key"]).parent / "other"
    folder.mkdir()
    files["key"] = Authority(folder).pair("other")["key"]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda files: Path(files["cert"]).unlink(), "FILE:2: server.tls: {cert} does not exist"),
        (lambda files: Path(files["cert"]).write_text("?"), "FILE:2: server.tls: {cert} has no PEM certificate"),
        (lambda files: Path(files["key"]).write_text("?"), "FILE:2: server.tls: {key} has no PEM private key"),
        (
            lambda files: Path(files["key"]).write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----"),
            "FILE:2: server.tls: {key} is encrypted: remove the passphrase",
        ),
        (
            lambda files: Path(files["key"]).write_text("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"),
            "FILE:2: server.tls: {cert} and {key} cannot be used: ",
        ),
        (_other_key, "FILE:2: server.tls: {key} is not the key of the certificate in {cert}"),
        (
            lambda files: Path(files["ca"]).write_text("?"),
            "FILE:6: upstreams.one.tls: {ca} has no PEM certificate",
        ),
        (
            lambda files: Path(files["ca"]).write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----"),
            "FILE:6: upstreams.one.tls: {ca} has an invalid certificate",
        ),
        (
            lambda files: Path(files["secret"]).write_text(" \n"),
            "FILE:6: upstreams.one.api_key_file: {secret} is empty; it must contain the key",
        ),
        (
            lambda files: Path(files["secret"]).write_text("OPENAI_API_KEY=sk-secret\nx"),
            "FILE:6: upstreams.one.api_key_file: {secret} must contain one key and nothing else",
        ),
        (
            lambda files: files.update(secret=str(Path(files["secret"]).parent)),
            "FILE:6: upstreams.one.api_key_file: {secret} is not a file",
        ),
    ],
)
def test_bad_file_is_named_with_its_place(
    tmp_path: Path, files: Files, spoil: Callable[[Files], object], problem: str
) -> None:
    spoil(files)
    code, output = check(tmp_path, files)
    assert code == 2
    assert problem.format(**files) in output
    assert "sk-secret" not in output


@pytest.mark.parametrize("which", ["cert", "ca"])
def test_file_that_ends_within_its_second_certificate_is_half_written(tmp_path: Path, files: Files, which: str) -> None:
    file, second = Path(files[which]), Authority(tmp_path).file.read_bytes().strip()
    whole = file.read_bytes()
    for size in (2, 8, 14, 200, len(second) - 30, len(second) - 20, len(second) - 1):
        file.write_bytes(whole + second[:size])
        code, output = check(tmp_path, files)
        assert (code, f"{file} ends within a certificate" in output) == (2, True), size
    for end in (second, second + b"\r\n", second + b"\n# the end"):
        file.write_bytes(whole + end)
        assert check(tmp_path, files)[0] == 0


def test_every_bad_file_is_named_at_once(tmp_path: Path, files: Files) -> None:
    Path(files["cert"]).unlink()
    Path(files["secret"]).unlink()
    _, output = check(tmp_path, files)
    assert "server.tls" in output
    assert "upstreams.one.api_key_file" in output


def test_missing_key_of_a_service_account_is_named_with_its_place(tmp_path: Path) -> None:
    path, file = tmp_path / "config.yaml", tmp_path / "account.json"
    one = f"{{dialect: openai, base_url: 'https://h/v1', auth: google, google: {{credentials_file: {file}}}}}"
    path.write_text(f"upstreams:\n  one: {one}\nmodels: {{m: {{deployments: [{{upstream: one}}]}}}}\n")
    result = CliRunner().invoke(main, ["check", "-c", str(path)])
    assert f"{path}:2: upstreams.one.google.credentials_file: {file} does not exist" in result.output
    file.write_text("{}")  # the library that reads it judges its content
    assert CliRunner().invoke(main, ["check", "-c", str(path)]).exit_code == 0


def test_expired_certificate_is_warned_of(tmp_path: Path, files: Files) -> None:
    Authority(tmp_path).pair("one", ends=EXPIRED)
    code, output = check(tmp_path, files)
    assert code == 0
    assert f": server.tls.cert: the certificate in {files['cert']} has expired: clients refuse it" in output


def test_end_of_a_certificate_is_read_from_the_file(tmp_path: Path, files: Files) -> None:
    Authority(tmp_path).pair("one", ends=EXPIRED)
    assert expires_at(Path(files["cert"]).read_bytes()) == EXPIRED.timestamp()
    assert expires_at(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----") is None
    assert expires_at(b"") is None
