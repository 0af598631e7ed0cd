"""Turns what Spark, Java and the disk throw at us into one sentence that says what to do."""

from __future__ import annotations

import errno
import re

_CLASS = re.compile(r"^(?:Caused by: |: )?(?:[a-z_$][\w$]*\.)+[A-Z][\w$]*(?::\s*|$)")
_SEGMENT = re.compile(
    r"(?:file:/*)?(/[^\n]*?seg-\d{16}-\d{16}\.parquet)|(\w+://[^\n]*?seg-\d{16}-\d{16}\.parquet)"
)
_UNREADABLE = (
    "FAILED_READ_FILE",
    "CANNOT_READ_FILE_FOOTER",
    "ParquetDecodingException",
    "is not a Parquet file",
    "could not verify page integrity",
    "CRC checksum verification failed",
)
_GONE = ("FILE_NOT_EXIST", "FileNotFoundException")


def from_spark(error: BaseException) -> bool:
    """Whether an exception comes from Spark or its Java process, and is no mistake of ours in Python."""
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return bool(modules & {"py4j", "pyspark"}) or isinstance(error, ConnectionError)


def damaged_segment(error: BaseException) -> str | None:
    """The path of the segment whose pages could not be read, if that is what went wrong."""
    text = str(error)
    if not any(mark in text for mark in _UNREADABLE) or any(mark in text for mark in _GONE):
        return None
    found = _SEGMENT.search(text)
    return found and (found[1] or found[2])


def sentence(error: BaseException, out: str) -> str:
    """What went wrong; `out` is where the output goes."""
    text = str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = "No space left on device"
    if "No space left on device" in text or "Disk quota exceeded" in text:
        return (
            f"There is no space left for {out}, or for Spark's own files "
            "(--conf spark.local.dir=FOLDER moves those)."
        )
    if "Read-only file system" in text or "Permission denied" in text or "Mkdirs failed" in text:
        return f"Something cannot be written: {first_line(text).rstrip('.')}."
    if "OutOfMemoryError" in text:
        return "Spark ran out of memory; --conf spark.driver.memory=12g gives it more."
    if any(mark in text for mark in _GONE) and _SEGMENT.search(text):
        return "A segment was removed while it was being read; run the command again."
    if "No module named" in text:
        missing = re.search(r"No module named '?([\w.]+)", text)
        name = missing[1] if missing else "a module"
        return (
            f"Python on an executor lacks {name}; --py-files sends this package along, "
            "anything else has to be installed there."
        )
    if isinstance(error, ConnectionError) or "Py4JNetworkError" in type(error).__name__:
        return "Spark's Java process ended unexpectedly; the system may have been short of memory."
    if type(error).__name__ == "Py4JError" and "Answer from Java side is empty" in text:
        return "Spark's Java process ended unexpectedly; the system may have been short of memory."
    if "All masters are unresponsive" in text or "stopped SparkContext" in text:
        return "The connection to the Spark master was lost."
    return f"Spark failed: {first_line(text).rstrip('.')}."


def first_line(text: str) -> str:
    """The innermost cause that has words, without names of Java classes."""
    lines = [
        line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("at ")
    ]
    causes = [line for line in lines if line.startswith("Caused by: ")] or lines[1:2] + lines[:1]
    for line in reversed(causes[-3:]):
        said = line
        while (shorter := _CLASS.sub("", said)) != said:
            said = shorter
        if said and "An error occurred while calling" not in said:
            return said[:300]
    return "no reason was given"
