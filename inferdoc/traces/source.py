"""Opening a trace file: compression by magic bytes, encoding by byte order mark, and what is no trace at all."""

from __future__ import annotations

import bz2
import codecs
import glob
import gzip
import io
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

import polars as pl

from inferdoc.errors import TraceError

Compression = Literal["gzip", "bzip2", "zstd"]
Columnar = Literal["parquet", "arrow", "arrow stream"]

_HEAD_BYTES = 1 << 16
_CHUNK_BYTES = 1 << 20
_JSON_START = re.compile(r"\{|\[\s*([\[{\]\"]|$)")
_COLUMNAR_MAGIC: dict[bytes, Columnar] = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow stream"}
_REFUSED_MAGIC = {
    b"PK\x03\x04": "a zip archive; unpack it and give the file inside",
    b"\xfd7zXZ\x00": "xz-compressed: not read; unpack it with `xz -d`",
}


@dataclass(frozen=True)
class Source:
    """A trace file that can be opened again and again as UTF-8 without a byte order mark.

    `where` is the path as the user gave it; `head` is the beginning of the text, without leading blank lines;
    `columnar` files (Parquet, Arrow) have no text.
    """

    path: Path
    where: str
    compression: Compression | None
    encoding: str
    head: str
    columnar: Columnar | None = None

    @classmethod
    def find(cls, path: Path, where: str | None = None) -> Source:
        """Look at the file's first bytes.

        Raises:
            TraceError: no such file, a folder, empty, not text, or a file that only stands for the data.
        """
        where = where or str(path)
        if path.is_dir():
            raise TraceError("is a folder; give one trace file", where=where)
        try:
            with path.open("rb") as file:
                magic = file.read(8)
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror or error})", where=where) from None
        for prefix, what in _REFUSED_MAGIC.items():
            if magic.startswith(prefix):
                raise TraceError(f"is {what}", where=where)
        for prefix, kind in _COLUMNAR_MAGIC.items():
            if magic.startswith(prefix):
                return cls(path, where, None, "utf-8", "", kind)
        compression = _compression(magic)
        draft = cls(path, where, compression, "utf-8", "")
        with draft._reading(), draft._unpacked() as stream:
            head = stream.read(_HEAD_BYTES)
        encoding = _encoding(head)
        text = head.decode(encoding, errors="replace").lstrip("\ufeff")
        _refuse_stand_ins(text, where)
        return cls(path, where, compression, encoding, text.lstrip())

    @property
    def name(self) -> str:
        """The file's name without its folder."""
        return Path(self.where).name

    @property
    def is_json(self) -> bool:
        """Whether it begins as JSON does; a log line may begin with a date in brackets."""
        return _JSON_START.match(self.head) is not None

    def read(self) -> bytes:
        """The whole file, unpacked, as UTF-8 without a byte order mark.

        Raises:
            TraceError: the compressed data end early, or the bytes are not in the file's encoding.
        """
        with self._reading(), self._unpacked() as stream:
            data = stream.read()
        if self.encoding == "utf-16":
            return self._decode(data, "utf-16").encode()
        return data.removeprefix(codecs.BOM_UTF8)

    def plain(self) -> Path | io.BytesIO:
        """What polars reads: the file itself where it is plain UTF-8, else its content unpacked."""
        if self.columnar:
            # Polars takes a path with brackets for a pattern.
            return io.BytesIO(self.path.read_bytes()) if glob.has_magic(str(self.path)) else self.path
        other = self.compression or self.encoding == "utf-16" or self._has_mark() or glob.has_magic(str(self.path))
        return io.BytesIO(self.read()) if other else self.path

    def has_byte(self, byte: bytes) -> bool:
        """Whether `byte` is anywhere in the unpacked file."""
        with self._reading(), self._unpacked() as stream:
            return any(byte in chunk for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""))

    def ends_with_line(self) -> bool:
        """Whether the last line has a line end: a file that is being written may not have."""
        if self.encoding == "utf-16":
            return self.text().endswith("\n")
        last = b""
        with self._reading(), self._unpacked() as stream:
            for chunk in iter(lambda: stream.read(_CHUNK_BYTES), b""):
                last = chunk[-1:]
        return last in (b"\n", b"\r")

    def text(self) -> str:
        """The whole file as text with ``\\n`` line ends."""
        return self._decode(self.read(), "utf-8").replace("\r\n", "\n")

    def lines(self) -> Iterator[tuple[int, str]]:
        """Every line with its number from 1, without its line end; reads as it goes."""
        if self.encoding == "utf-16":
            yield from enumerate(self.text().split("\n"), 1)
            return
        with self._reading(), self._unpacked() as stream:
            for number, raw in enumerate(stream, 1):
                line = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                yield number, self._decode(line, "utf-8", number).rstrip("\r\n")

    def _has_mark(self) -> bool:
        with self.path.open("rb") as file:
            return file.read(3) == codecs.BOM_UTF8

    def _decode(self, data: bytes, encoding: str, line: int | None = None) -> str:
        try:
            return data.decode(encoding)
        except UnicodeDecodeError as error:
            number = line or data.count(b"\n", 0, error.start) + 1
            raise TraceError(
                f"not {encoding.upper()} (byte 0x{data[error.start]:02x} at {error.start}); save the file as UTF-8",
                where=f"{self.where}:{number}",
            ) from None

    def _unpacked(self) -> IO[bytes]:
        if self.compression == "gzip":
            return cast(IO[bytes], gzip.open(self.path, "rb"))
        if self.compression == "bzip2":
            return bz2.open(self.path, "rb")
        if self.compression == "zstd":
            return io.BytesIO(_unpack_zstd(self.path, self.where))
        return self.path.open("rb")

    def _reading(self) -> _Reading:
        return _Reading(self.where)


class _Reading:
    """Turns what compressed streams raise into one clear error."""

    def __init__(self, where: str) -> None:
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if isinstance(error, EOFError | OSError | zlib.error | pl.exceptions.PolarsError):
            raise TraceError(
                f"cannot be unpacked ({error}); the file may be cut off: fetch it again", where=self._where
            ) from None


_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def _compression(magic: bytes) -> Compression | None:
    if magic.startswith(b"\x1f\x8b"):
        return "gzip"
    if magic.startswith(b"BZh"):
        return "bzip2"
    return "zstd" if magic.startswith(b"\x28\xb5\x2f\xfd") else None


def _encoding(head: bytes) -> str:
    return "utf-16" if head.startswith(_UTF16_MARKS) else "utf-8"


def _unpack_zstd(path: Path, where: str) -> bytes:
    # Python has no zstd before 3.14; polars unpacks it on the way into its CSV reader. A separator and a line end that
    # JSON and CSV text never hold, and no quoting, give the content back as it is, in one cell.
    packed = io.BytesIO(path.read_bytes())
    try:
        frame = pl.read_csv(
            packed, has_header=False, separator="\x01", eol_char="\x02", quote_char=None, schema={"text": pl.String}
        )
    except pl.exceptions.NoDataError:
        return b""
    except pl.exceptions.ComputeError as error:
        raise TraceError(f"not UTF-8 inside ({error}); unpack it and save it as UTF-8", where=where) from None
    return "".join(frame["text"].fill_null("")).encode()


def _refuse_stand_ins(text: str, where: str) -> None:
    start = text.lstrip()
    if not start:
        raise TraceError("is empty", where=where)
    if start.startswith("version https://git-lfs.github.com/spec/"):
        raise TraceError("is a Git LFS pointer, not the data; fetch the data with `git lfs pull`", where=where)
    if start[:200].lower().startswith(("<!doctype html", "<html", "<?xml", "<head")):
        raise TraceError("is a web page, not a trace: the download gave an error page; fetch it again", where=where)
    if text[257:262] == "ustar":
        raise TraceError("is a tar archive; unpack it and give the file or folder inside", where=where)
    if "\x00" in text[:4096]:
        position = text.index("\x00")
        raise TraceError(f"not UTF-8 text (byte 0x00 at {position}); save the file as UTF-8", where=where)
