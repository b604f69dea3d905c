"""Files that survive a crash: keys (as agora keygen writes them) and cursors."""
from __future__ import annotations

import json
import os
import pathlib
import stat
import tempfile
from typing import Any

from .didkey import Identity
from .envelope import decode64, encode64
from .errors import Refused, refuse_unless

Path = str | os.PathLike[str]
MAX_CURSOR = 1024  # bytes
_MAX_KEY_FILE = 64 * 1024


def format_key_file(me: Identity) -> str:
    """The text of a key file: a private JSON Web Key (RFC 8037). Save it with save_key, so that only you can read
    it."""
    key = {"kty": "OKP", "crv": "Ed25519", "kid": me.did, "x": encode64(me.public_key), "d": encode64(me.seed)}
    return json.dumps(key, indent=2) + "\n"


def read_key_file(text: str) -> Identity:
    """The identity in the text of a key file. Raises Refused with INVALID_KEY."""
    try:
        key: Any = json.loads(text)
    except (ValueError, RecursionError):
        key = None  # the parser's own error may quote the text, which is secret
    if not isinstance(key, dict) or key.get("kty") != "OKP" or key.get("crv") != "Ed25519":
        raise Refused(
            "INVALID_KEY", "not an Ed25519 key file (a JSON Web Key with kty OKP); make a new one with "
            "load_or_create_key(path), or with: agora keygen",
        )
    seed = decode64(key.get("d"))
    if seed is None or len(seed) != 32:
        raise Refused("INVALID_KEY", "the member d of the key file is not the base64url of 32 bytes")
    me = Identity(seed)
    refuse_unless(
        key.get("kid") == me.did and key.get("x") == encode64(me.public_key),
        "INVALID_KEY",
        f"the key file is damaged: its private key belongs to {me.did}, but kid and x do not match; "
        "restore it from a backup",
    )
    return me


def load_key(path: Path) -> Identity:
    """Reads a key file. Raises FileNotFoundError, OSError, and Refused with INVALID_KEY: for a file that other users
    may access, and for a file whose public parts do not match its private key."""
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            text = file.read(_MAX_KEY_FILE + 1)
    except FileNotFoundError as err:
        raise FileNotFoundError(
            err.errno, "there is no key file; use load_or_create_key, or make one with: agora keygen", name
        ) from None
    try:
        refuse_unless(len(text) <= _MAX_KEY_FILE, "INVALID_KEY", "the file is too long for a key file")
        refuse_unless(
            os.name == "nt" or mode & 0o077 == 0,
            "INVALID_KEY",
            f"the key file has mode {mode:#o}, so other users may access it; run: chmod 600 {name}",
        )
        return read_key_file(text.decode(errors="replace"))
    except Refused as err:
        raise Refused("INVALID_KEY", f"{name}: {err.message}") from None


def save_key(path: Path, me: Identity) -> None:
    """Writes me to a new file that only its owner can read. It never overwrites a file (FileExistsError), because a
    lost key is a lost identity. If the process or the machine stops, the file is either complete or absent."""
    _create(os.fspath(path), format_key_file(me).encode())


def load_or_create_key(path: Path) -> Identity:
    """Reads the key file, or makes a new identity and saves it there if there is none. If several processes do so at
    the same time, all get the same identity. The folder must exist. Raises what load_key and save_key raise."""
    try:
        return load_key(path)
    except FileNotFoundError:
        me = Identity.generate()
    try:
        save_key(path, me)
    except FileExistsError:  # another process has created it since
        return load_key(path)
    return me


class FileCursor:
    """A file that stores the position of a reader. Use one file for one reader of one relay. save replaces the file in
    one step, so after a crash the file has the old cursor or the new one."""

    def __init__(self, path: Path):
        self.path = pathlib.Path(path)

    def load(self) -> str | None:
        """The saved cursor, or None if there is no file. Raises OSError, and ValueError if the file is no cursor."""
        try:
            with open(self.path, "rb") as file:
                text = file.read(MAX_CURSOR + 1)
        except FileNotFoundError:
            return None
        if len(text) > MAX_CURSOR:
            raise ValueError(
                f"the file {self.path} is too long to be a cursor; move it away to start without a cursor"
            )
        return text.decode(errors="replace").strip() or None

    def save(self, cursor: str) -> None:
        """Stores the cursor. When save returns, the cursor survives a crash. The folder must exist."""
        replace(os.fspath(self.path), cursor.encode() + b"\n")


def _write_temp(path: str, text: bytes) -> str:
    folder = os.path.dirname(path) or "."
    try:
        descriptor, temp = tempfile.mkstemp(".tmp", os.path.basename(path) + ".", folder)  # mode 0600
    except OSError as err:  # it names the temporary file, which the caller does not know
        missing = isinstance(err, FileNotFoundError)
        why = f"the folder {folder!r} does not exist; make it first" if missing else err.strerror
        raise OSError(err.errno, why, path) from None
    try:
        with open(descriptor, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        os.unlink(temp)
        raise
    return temp


def _create(path: str, text: bytes) -> None:
    temp = _write_temp(path, text)
    try:
        os.link(temp, path)  # unlike a rename, a link never replaces a file
    except FileExistsError as err:
        raise FileExistsError(
            err.errno,
            "the file exists and is not overwritten; choose another name, or move the file " "away first",
            path,
        ) from None
    finally:
        os.unlink(temp)
    _sync_folder(path)


def replace(path: str, text: bytes) -> None:
    """Replaces the file at path in one step. When it returns, the new text survives a crash."""
    temp = _write_temp(path, text)
    try:
        os.replace(temp, path)
    except BaseException:
        os.unlink(temp)
        raise
    _sync_folder(path)


def _sync_folder(path: str) -> None:
    if os.name == "nt":  # folders cannot be synced there, and NTFS does not need it
        return
    descriptor = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
