"""Makes certificates and node keys for a federation that has none of its own.

``hanse network up`` calls these functions. :func:`make_certificates` makes a certificate authority (CA) and the
SuperLink's certificate. :func:`make_outside` makes a second certificate if other machines reach the federation through
the proxy. :func:`make_node_key` makes the key pair of each trial node.

All keys are elliptic-curve keys. Only the owner can read private keys. An operator who has certificates from elsewhere
stores them under the same file names. They are then used unchanged.
"""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.wings.operate.clocks import judged

DAYS = 365  # how long a server's certificate is valid
CA_DAYS = 3650  # and an authority's, which members keep


def make_certificates(folder: Path, name: str) -> None:
    """Make a certificate authority, valid for ten years, and the SuperLink's own certificate, valid for one.

    Args:
        folder: the folder for ``ca.crt``, ``ca.key``, ``server.crt`` and ``server.key``; it is made if necessary. The
            server's certificate is for localhost and 127.0.0.1, where the SuperLink listens.
        name: the federation's name, which becomes part of the authority's name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} CA")])
    _make_authority(folder, authority, ec.generate_private_key(ec.SECP256R1()))
    _make_server(folder, "server", ())


def renew_certificates(folder: Path, now: datetime.datetime) -> tuple[list[str], list[str]]:
    """Make the servers' certificates anew, for the same names, and that of the authority if it ends within 30 days.

    The authority keeps its key, so a server's certificate is trusted by whoever has the old ``ca.crt``, until that
    ends, and by whoever has the new one.

    Args:
        folder: the folder of :func:`make_certificates`.
        now: the time.

    Returns:
        The names of the certificates that were made, and of those that were left because they are another authority's.

    Raises:
        UserError: the authority's key is not there.
    """
    if not (folder / "ca.key").exists():
        raise UserError(f"{folder / 'ca.key'}: is not there, so nothing can be signed; put certificates of yours there")
    ca, key = _authority(folder)
    made, left = list[str](), list[str]()
    if any(one.state != "fine" for one in judged(folder / "ca.crt", now)):
        _make_authority(folder, ca.subject, key)
        made.append("ca.crt")
    for path in (folder / f"{stem}.crt" for stem in ("server", "outside")):
        if not path.exists():
            continue
        old = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            old.verify_directly_issued_by(ca)
        except (ValueError, InvalidSignature):
            left.append(path.name)
            continue
        _make_server(folder, path.stem, names_of(path))
        made.append(path.name)
    return made, left


def names_of(path: Path) -> list[x509.GeneralName]:
    """Return for which machines a certificate is."""
    found = x509.load_pem_x509_certificate(path.read_bytes())
    return list(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)


def _authority(folder: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Return the authority's certificate and key."""
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes()), key


def _make_authority(folder: Path, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> None:
    """Make ``ca.crt`` for this key, and ``ca.key``."""
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    _make(folder, "ca", (issuer, key), (issuer, key), CA_DAYS, x509.BasicConstraints(True, 0), usage, own)


def make_outside(folder: Path, hosts: Sequence[str]) -> None:
    """Make the certificate that the proxy shows to other machines, unless there is one already.

    Args:
        folder: the folder with ``ca.crt`` and ``ca.key``, into which ``outside.crt`` and ``outside.key`` are written,
            unless the operator has put files of these names there.
        hosts: the host names or IP addresses under which nodes reach the proxy.

    Raises:
        UserError: an existing certificate does not cover a host, or a host is not a name or address.
    """
    path = folder / "outside.crt"
    if not path.exists():
        _make_server(folder, "outside", map(_general, hosts))
    if missing := [host for host in hosts if _general(host) not in names_of(path)]:
        raise UserError(
            f"{path}: is not for {missing[0]}: remove outside.crt and outside.key for new ones, or put your own there"
        )


def _make_server(folder: Path, stem: str, hosts: Iterable[x509.GeneralName]) -> None:
    """Make ``STEM.crt`` and ``STEM.key`` for this machine and ``hosts``, signed with the CA in ``folder``."""
    ca, ca_key = _authority(folder)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    ca_id = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    # dict.fromkeys drops repeated names and keeps their order
    names = x509.SubjectAlternativeName(dict.fromkeys((*map(_general, ("localhost", "127.0.0.1")), *hosts)))
    signer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(ca_id)
    own = subject, ec.generate_private_key(ec.SECP256R1())
    _make(folder, stem, own, (ca.subject, ca_key), DAYS, x509.BasicConstraints(False, None), names, signer)


def _make(
    folder: Path,
    stem: str,
    own: tuple[x509.Name, ec.EllipticCurvePrivateKey],
    signer: tuple[x509.Name, ec.EllipticCurvePrivateKey],
    days: float,
    *extensions: x509.ExtensionType,
) -> None:
    """Write a certificate of an owner, which another signs, and its key, readable by its user alone."""
    (subject, key), (issuer, signs), now = own, signer, datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # machines' clocks differ a little: a node whose clock is slow must not find it in the future
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=days))
    )
    for one in extensions:
        made = made.add_extension(one, critical=isinstance(one, x509.BasicConstraints | x509.KeyUsage))
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_whole(folder / f"{stem}.key", private, private=True)
    certificate = made.sign(signs, hashes.SHA256())
    write_whole(folder / f"{stem}.crt", certificate.public_bytes(Encoding.PEM))


def _general(host: str) -> x509.GeneralName:
    """Return a host as certificates name it: an IP address or a DNS name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host):
            raise UserError(f"--host: {host!r}: must be a machine's name or address") from None
        return x509.DNSName(host)


def make_node_key(path: Path) -> None:
    """Make the key pair by which the SuperLink recognises a SuperNode.

    Args:
        path: the file for the private key. The public key is written to ``path`` with ``.pub`` added. Both are in
            OpenSSH's format on the curve P-384, which Flower reads.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    write_whole(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()), private=True)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_name(path.name + ".pub").write_bytes(public)


def node_identity(path: Path, half: Literal["private", "public"], where: str) -> str:
    """Return a node's identity by a half of its key: what :func:`hanse.flower.nodes.key_of` says once it is there.

    Args:
        path: the file of this half, in OpenSSH's format.
        half: which half it is.
        where: the option, which begins an error's line.

    Raises:
        UserError: the file is not there, or is not this half of such a key.
    """
    key: object = None
    with suppress(OSError, ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: a password protects it
        if half == "public":
            key = serialization.load_ssh_public_key(path.read_bytes())
        else:
            key = serialization.load_ssh_private_key(path.read_bytes(), None).public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise UserError(f"{where}: {path}: must be the {half} half of what 'ssh-keygen -t ecdsa -b 384 -N \"\"' makes")
    return hashlib.sha256(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
