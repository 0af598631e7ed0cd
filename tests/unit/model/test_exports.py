"""Configurations of exports: checked already, though exports are later work."""

from __future__ import annotations

import pytest

from pubsubd.model import exports
from pubsubd.wire import pb
from tests.unit.model.conftest import refusal, seconds


@pytest.mark.parametrize("table", ["p.d.t", "my-project.data.events", "example.com:proj.d.t"])
def test_a_bigquery_table_has_a_project_a_dataset_and_a_table(table: str) -> None:
    exports.check_bigquery(pb.BigQueryConfig(table=table))


@pytest.mark.parametrize("table", ["", "t", "d.t", "p..t", "p.d.", "p/d.x.t", "p.d.t\n"])
def test_another_bigquery_table_is_refused(table: str) -> None:
    message = refusal("INVALID_ARGUMENT", exports.check_bigquery, pb.BigQueryConfig(table=table))

    assert "bigquery_config.table" in message


def test_topic_schema_and_table_schema_exclude_each_other() -> None:
    config = pb.BigQueryConfig(table="p.d.t", use_topic_schema=True, use_table_schema=True)

    refusal("INVALID_ARGUMENT", exports.check_bigquery, config)


@pytest.mark.parametrize("table", ["", "t", "projects/p/instances/i", "projects/p/instances/i/tables/t/x"])
def test_another_bigtable_table_is_refused(table: str) -> None:
    refusal("INVALID_ARGUMENT", exports.check_bigtable, pb.BigtableConfig(table=table))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_duration": seconds(60), "max_bytes": 1000, "max_messages": 1000},
        {"max_duration": seconds(600), "max_bytes": 10 * 1024**3, "max_messages": 2**63 - 1},
        {"filename_prefix": "log/", "filename_suffix": ".avro"},
        {"filename_datetime_format": "YYYY-MM-DD/hh_mm_ssZ"},
        {"filename_datetime_format": "YYMMDDThhmmss"},
        {"filename_datetime_format": "YYYY-MM-DDThh_mm_ss-"},
        {"filename_datetime_format": "ss:mm:hh+00:00/DDMMYY"},
    ],
)
def test_a_cloud_storage_configuration_within_the_rules_is_accepted(fields: dict[str, object]) -> None:
    exports.check_cloud_storage(pb.CloudStorageConfig(**{"bucket": "bucket", **fields}))


@pytest.mark.parametrize(
    "fields",
    [
        {"bucket": ""},
        {"bucket": "gs://bucket"},
        {"filename_prefix": "a\nb"},
        {"filename_suffix": "x/"},
        {"max_duration": seconds(59.999)},
        {"max_duration": seconds(601)},
        {"max_duration": pb.Duration(seconds=60, nanos=-1)},
        {"max_bytes": 999},
        {"max_bytes": -1},
        {"max_bytes": 10 * 1024**3 + 1},
        {"max_messages": 999},
        {"max_messages": -1},
        {"filename_datetime_format": "YYYY-MM-DD"},
        {"filename_datetime_format": "YYYYYYMMDDhhmmss"},
        {"filename_datetime_format": "YYYYMMMMDDhhmmss"},
        {"filename_datetime_format": "YYYYMMDDThhmmssT"},
        {"filename_datetime_format": "YYYYMMDDhhmmssZ+00:00"},
        {"filename_datetime_format": "YYYY.MM.DD hh:mm:ss"},
    ],
    ids=str,
)
def test_a_cloud_storage_configuration_outside_the_rules_is_refused(fields: dict[str, object]) -> None:
    config = pb.CloudStorageConfig(**{"bucket": "bucket", **fields})

    assert "cloud_storage_config" in refusal("INVALID_ARGUMENT", exports.check_cloud_storage, config)
