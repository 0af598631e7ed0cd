"""Ingestion settings of a topic: stored and returned, never acted on.

Source: IngestionDataSourceSettings, PlatformLogsSettings.
"""

from __future__ import annotations

from typing import Final

from pubsubd.model import durations, errors, limits
from pubsubd.wire import pb

_FIELD: Final = "ingestion_data_source_settings"

#: Source -> the fields that must not be empty. Those of Azure Event Hubs are all documented as optional.
_REQUIRED: Final[dict[str, tuple[str, ...]]] = {
    "aws_kinesis": ("stream_arn", "consumer_arn", "aws_role_arn", "gcp_service_account"),
    "cloud_storage": ("bucket",),
    "azure_event_hubs": (),
    "aws_msk": ("cluster_arn", "topic", "aws_role_arn", "gcp_service_account"),
    "confluent_cloud": (
        "bootstrap_server",
        "cluster_id",
        "topic",
        "identity_pool_id",
        "gcp_service_account",
    ),
}


def check_ingestion(settings: pb.IngestionDataSourceSettings) -> None:
    """Refuse ingestion settings that break a rule.

    Raises:
        InvalidArgument: naming the field and the rule.
    """
    kind = settings.WhichOneof("source")
    if kind is None:
        raise errors.bad_argument(_FIELD, "no ingestion source provided")
    source = getattr(settings, kind)
    for field in _REQUIRED[kind]:
        if not getattr(source, field):
            raise errors.bad_argument(f"{_FIELD}.{kind}.{field}", "it must not be empty")
    if kind == "cloud_storage":
        _check_cloud_storage(source)
    severity = settings.platform_logs_settings.severity
    if severity not in pb.PlatformLogsSettings.Severity.values():
        raise errors.bad_argument(
            f"{_FIELD}.platform_logs_settings.severity", f"{severity} is not a known severity"
        )


def _check_cloud_storage(source: pb.IngestionDataSourceSettings.CloudStorage) -> None:
    field = f"{_FIELD}.cloud_storage"
    # Without an input format the objects are text; that is the documented default.
    text = source.text_format
    if text.HasField("delimiter") and len(text.delimiter) != limits.TEXT_DELIMITER_CHARS:
        raise errors.bad_argument(f"{field}.text_format.delimiter", "it must be a single character")
    if source.HasField("minimum_object_create_time"):
        durations.check_timestamp(source.minimum_object_create_time, f"{field}.minimum_object_create_time")


def activate(settings: pb.IngestionDataSourceSettings) -> None:
    """Give the source the state that a client sees; what the client sent there is ignored."""
    source = getattr(settings, settings.WhichOneof("source"))
    source.state = source.ACTIVE
