"""The journal as a reader meets it: names of files, columns, kinds of events and answers. Format version 1.

One Parquet row is one event; `seq` is the order. Times are microseconds since the epoch, UTC; 0 means none.
This is a description of its own, not the server's: a test holds the two together.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

VERSION = 1

# Key-value metadata of every segment and backlog file.
VERSION_KEY = "pubsubd.format"  # the format version, in decimal
SERVER_KEY = "pubsubd.server"  # 16 hex digits: which database the journal belongs to

SEGMENTS = "segments"
BACKLOG = "backlog"
SEGMENT_PATH = re.compile(
    r"date=(\d{4}-\d\d-\d\d)/hour=(\d{1,2})/seg-(\d{16})-(\d{16})\.parquet"
)  # date, hour, first seq, last seq
BACKLOG_NAME = re.compile(r"backlog-(\d+)\.parquet")  # open messages as of this seq


class Kind(IntEnum):
    PUBLISH = 1
    DELIVER = 2
    EXTEND = 3
    NACK = 4
    ACK = 5
    EXPIRE = 6
    DEADLETTER = 7
    DROP = 8
    SEEK = 9
    CONFIG = 10
    FILTERED = 11
    STREAM = 12
    START = 13
    GAP = 14
    RESET = 15


class Result(IntEnum):
    OK = 0
    NOOP = 1  # told OK, and nothing changed
    PERMANENT = 2
    TRANSIENT = 3
    OTHER = 4


class Column(NamedTuple):
    name: str
    type: str  # int8, int32, int64 or string
    meaning: str


COLUMNS = (
    Column("seq", "int64", "place in the order of commits, from 1, without a hole"),
    Column("ts_us", "int64", "when it happened"),
    Column("kind", "int8", "what happened, see Kind"),
    Column("topic_id", "int32", "the server's number of the topic"),
    Column("sub_id", "int32", "the server's number of this incarnation of the subscription"),
    Column("message_id", "int64", "rising in the order of publishing"),
    Column(
        "generation", "int32", "which lease of the message on the subscription; 0: none or an unknown ack id"
    ),
    Column("attempt", "int32", "count of delivery attempts"),
    Column("deadline_us", "int64", "end of the lease after this event"),
    Column("ref_ts_us", "int64", "the other end of the latency that this event closes"),
    Column("result", "int8", "what the client was told, see Result"),
    Column("client_id", "int32", "who; names are in STREAM events"),
    Column("stream_id", "int64", "on which stream or unary call"),
    Column("okey", "int64", "hash of the ordering key; 0: no key"),
    Column("bytes", "int32", "size of the message"),
    Column("payload_hash", "int64", "hash of data and attributes"),
    Column("aux", "int64", "by kind"),
    Column("detail", "string", "JSON, of SEEK, CONFIG, STREAM, START and GAP"),
)
