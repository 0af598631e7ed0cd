"""Configurations of export subscriptions: the rules on their fields.

Source: BigQueryConfig, CloudStorageConfig, BigtableConfig,
https://cloud.google.com/pubsub/docs/create-bigquery-subscription and
https://cloud.google.com/pubsub/docs/create-cloudstorage-subscription.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from pubsubd.model import durations, errors, limits
from pubsubd.wire import pb

_BIGTABLE_TABLE: Final = re.compile(r"projects/[^/\s]+/instances/[^/\s]+/tables/[^/\s]+")
# The project may be of the old form `example.com:project`, so only the last two dots are sure to separate.
_BIGQUERY_TABLE: Final = re.compile(r"[^/\s]+\.[^./\s]+\.[^./\s]+")

_DATETIME_PIECE: Final = re.compile(r"(YYYY|YY|MM|DD|hh|mm|ss|T|Z|\+00:00)|[-_:/]")


def check_bigquery(config: pb.BigQueryConfig) -> None:
    """Refuse a BigQuery configuration that breaks a rule (InvalidArgument)."""
    if not config.table:
        raise errors.bad_argument("bigquery_config.table", "the table must be provided")
    if _BIGQUERY_TABLE.fullmatch(config.table) is None:
        raise errors.bad_argument(
            "bigquery_config.table", f"'{errors.echo(config.table)}' is not of the form project.dataset.table"
        )
    if config.use_topic_schema and config.use_table_schema:
        raise errors.bad_argument(
            "bigquery_config.use_table_schema", "it cannot be combined with use_topic_schema"
        )


def check_bigtable(config: pb.BigtableConfig) -> None:
    """Refuse a Bigtable configuration that breaks a rule (InvalidArgument)."""
    if _BIGTABLE_TABLE.fullmatch(config.table) is None:
        raise errors.bad_argument(
            "bigtable_config.table",
            f"'{errors.echo(config.table)}' is not of the form projects/*/instances/*/tables/*",
        )


def check_cloud_storage(config: pb.CloudStorageConfig) -> None:
    """Refuse a Cloud Storage configuration that breaks a rule of its own (InvalidArgument)."""
    field = "cloud_storage_config"
    if not config.bucket or config.bucket.startswith("gs://"):
        raise errors.bad_argument(f"{field}.bucket", "it must be the name of a bucket, without gs://")
    for part in ("filename_prefix", "filename_suffix"):
        if not getattr(config, part).isprintable():
            raise errors.bad_argument(f"{field}.{part}", "it must not hold control characters")
    if config.filename_suffix.endswith("/"):
        raise errors.bad_argument(f"{field}.filename_suffix", "it must not end in a slash")
    if config.filename_datetime_format and not _is_datetime_format(config.filename_datetime_format):
        raise errors.bad_argument(
            f"{field}.filename_datetime_format",
            f"'{errors.echo(config.filename_datetime_format)}' must hold YYYY or YY, MM, DD, hh, mm and ss "
            "once each, at most one T, at most one of Z and +00:00, and between them only - _ : and /",
        )
    _check_cloud_storage_limits(config)


def _check_cloud_storage_limits(config: pb.CloudStorageConfig) -> None:
    field = "cloud_storage_config"
    if config.HasField("max_duration"):
        durations.check_duration(config.max_duration, f"{field}.max_duration")
        minimum_ns = limits.EXPORT_DURATION_SECONDS_MIN * durations.SECOND_NS
        maximum_ns = limits.EXPORT_DURATION_SECONDS_MAX * durations.SECOND_NS
        if not minimum_ns <= durations.nanoseconds(config.max_duration) <= maximum_ns:
            raise errors.bad_argument(f"{field}.max_duration", "it must be between 1 and 10 minutes")
    # In proto3 an absent number is a zero, and absent means that the size does not end a file.
    if config.max_bytes and not limits.EXPORT_BYTES_MIN <= config.max_bytes <= limits.EXPORT_BYTES_MAX:
        raise errors.bad_argument(f"{field}.max_bytes", "it must be between 1 KB and 10 GiB")
    if config.max_messages and config.max_messages < limits.EXPORT_MESSAGES_MIN:
        raise errors.bad_argument(
            f"{field}.max_messages", f"it must be at least {limits.EXPORT_MESSAGES_MIN}"
        )


def _is_datetime_format(text: str) -> bool:
    pieces: Counter[str] = Counter()
    position = 0
    while position < len(text):
        piece = _DATETIME_PIECE.match(text, position)
        if piece is None:
            return False
        if piece[1]:
            pieces[piece[1]] += 1
        position = piece.end()
    return (
        pieces["YYYY"] + pieces["YY"] == 1
        and all(pieces[required] == 1 for required in ("MM", "DD", "hh", "mm", "ss"))
        and pieces["T"] <= 1
        and pieces["Z"] + pieces["+00:00"] <= 1
    )
