"""An authority, and a certificate by it for `server` and one for `client`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificates(folder: Path, host: str = "127.0.0.1") -> Path:
    """`ca.pem`, and NAME.pem with NAME.key; the test is skipped where there is no openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl to make certificates with")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names").write_text(f"subjectAltName=IP:{host}\n")
    for who in ("server", "client"):
        openssl("req", *curve, "-keyout", f"{who}.key", "-out", f"{who}.csr", "-subj", f"/CN={who}")
        signer = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{who}.csr", *signer, "-out", f"{who}.pem")
    return folder
