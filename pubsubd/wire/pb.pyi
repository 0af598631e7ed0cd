# Made from proto/ by `python -m pubsubd.wire.generate`; edits here are lost.
# Made by a program, so its lines are not wrapped:
# fmt: off
# ruff: noqa: E501

from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf.internal import containers, well_known_types
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

class GetPolicyOptions(Message):
    def __init__(
        self,
        *,
        requested_policy_version: int | None = ...,
    ) -> None: ...
    requested_policy_version: int

class Expr(Message):
    def __init__(
        self,
        *,
        expression: str | None = ...,
        title: str | None = ...,
        description: str | None = ...,
        location: str | None = ...,
    ) -> None: ...
    expression: str
    title: str
    description: str
    location: str

class Policy(Message):
    def __init__(
        self,
        *,
        version: int | None = ...,
        bindings: Iterable[Binding | Mapping[str, Any]] | None = ...,
        audit_configs: Iterable[AuditConfig | Mapping[str, Any]] | None = ...,
        etag: bytes | None = ...,
    ) -> None: ...
    version: int
    @property
    def bindings(self) -> containers.RepeatedCompositeFieldContainer[Binding]: ...
    @property
    def audit_configs(self) -> containers.RepeatedCompositeFieldContainer[AuditConfig]: ...
    etag: bytes

class Binding(Message):
    def __init__(
        self,
        *,
        role: str | None = ...,
        members: Iterable[str] | None = ...,
        condition: Expr | Mapping[str, Any] | None = ...,
    ) -> None: ...
    role: str
    @property
    def members(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    @property
    def condition(self) -> Expr: ...

class AuditConfig(Message):
    def __init__(
        self,
        *,
        service: str | None = ...,
        audit_log_configs: Iterable[AuditLogConfig | Mapping[str, Any]] | None = ...,
    ) -> None: ...
    service: str
    @property
    def audit_log_configs(self) -> containers.RepeatedCompositeFieldContainer[AuditLogConfig]: ...

class AuditLogConfig(Message):
    LogType: EnumTypeWrapper
    LOG_TYPE_UNSPECIFIED: int
    ADMIN_READ: int
    DATA_WRITE: int
    DATA_READ: int
    def __init__(
        self,
        *,
        log_type: int | None = ...,
        exempted_members: Iterable[str] | None = ...,
    ) -> None: ...
    log_type: int
    @property
    def exempted_members(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class FieldMask(Message, well_known_types.FieldMask):
    def __init__(
        self,
        *,
        paths: Iterable[str] | None = ...,
    ) -> None: ...
    @property
    def paths(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class SetIamPolicyRequest(Message):
    def __init__(
        self,
        *,
        resource: str | None = ...,
        policy: Policy | Mapping[str, Any] | None = ...,
        update_mask: FieldMask | Mapping[str, Any] | None = ...,
    ) -> None: ...
    resource: str
    @property
    def policy(self) -> Policy: ...
    @property
    def update_mask(self) -> FieldMask: ...

class GetIamPolicyRequest(Message):
    def __init__(
        self,
        *,
        resource: str | None = ...,
        options: GetPolicyOptions | Mapping[str, Any] | None = ...,
    ) -> None: ...
    resource: str
    @property
    def options(self) -> GetPolicyOptions: ...

class TestIamPermissionsRequest(Message):
    def __init__(
        self,
        *,
        resource: str | None = ...,
        permissions: Iterable[str] | None = ...,
    ) -> None: ...
    resource: str
    @property
    def permissions(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class TestIamPermissionsResponse(Message):
    def __init__(
        self,
        *,
        permissions: Iterable[str] | None = ...,
    ) -> None: ...
    @property
    def permissions(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class Duration(Message, well_known_types.Duration):
    def __init__(
        self,
        *,
        seconds: int | None = ...,
        nanos: int | None = ...,
    ) -> None: ...
    seconds: int
    nanos: int

class Empty(Message): ...

NullValue: EnumTypeWrapper
NULL_VALUE: int

class Struct(Message, well_known_types.Struct):
    def __init__(
        self,
        *,
        fields: Mapping[str, Value] | None = ...,
    ) -> None: ...
    @property
    def fields(self) -> containers.MessageMap[str, Value]: ...

class Value(Message):
    def __init__(
        self,
        *,
        null_value: int | None = ...,
        number_value: float | None = ...,
        string_value: str | None = ...,
        bool_value: bool | None = ...,
        struct_value: Struct | Mapping[str, Any] | None = ...,
        list_value: ListValue | Mapping[str, Any] | None = ...,
    ) -> None: ...
    null_value: int
    number_value: float
    string_value: str
    bool_value: bool
    @property
    def struct_value(self) -> Struct: ...
    @property
    def list_value(self) -> ListValue: ...

class ListValue(Message, well_known_types.ListValue):
    def __init__(
        self,
        *,
        values: Iterable[Value | Mapping[str, Any]] | None = ...,
    ) -> None: ...
    @property
    def values(self) -> containers.RepeatedCompositeFieldContainer[Value]: ...

class Timestamp(Message, well_known_types.Timestamp):
    def __init__(
        self,
        *,
        seconds: int | None = ...,
        nanos: int | None = ...,
    ) -> None: ...
    seconds: int
    nanos: int

SchemaView: EnumTypeWrapper
SCHEMA_VIEW_UNSPECIFIED: int
BASIC: int
FULL: int

Encoding: EnumTypeWrapper
ENCODING_UNSPECIFIED: int
JSON: int
BINARY: int

class Schema(Message):
    Type: EnumTypeWrapper
    TYPE_UNSPECIFIED: int
    PROTOCOL_BUFFER: int
    AVRO: int
    def __init__(
        self,
        *,
        name: str | None = ...,
        type: int | None = ...,
        definition: str | None = ...,
        compiled_proto_schema: CompiledProtoSchema | Mapping[str, Any] | None = ...,
        revision_id: str | None = ...,
        revision_create_time: Timestamp | Mapping[str, Any] | None = ...,
    ) -> None: ...
    name: str
    type: int
    definition: str
    @property
    def compiled_proto_schema(self) -> CompiledProtoSchema: ...
    revision_id: str
    @property
    def revision_create_time(self) -> Timestamp: ...

class CompiledProtoSchema(Message):
    def __init__(
        self,
        *,
        root_message: str | None = ...,
        compiled_bytes: bytes | None = ...,
    ) -> None: ...
    root_message: str
    compiled_bytes: bytes

class CreateSchemaRequest(Message):
    def __init__(
        self,
        *,
        parent: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        schema_id: str | None = ...,
    ) -> None: ...
    parent: str
    @property
    def schema(self) -> Schema: ...
    schema_id: str

class GetSchemaRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        view: int | None = ...,
    ) -> None: ...
    name: str
    view: int

class ListSchemasRequest(Message):
    def __init__(
        self,
        *,
        parent: str | None = ...,
        view: int | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    parent: str
    view: int
    page_size: int
    page_token: str

class ListSchemasResponse(Message):
    def __init__(
        self,
        *,
        schemas: Iterable[Schema | Mapping[str, Any]] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def schemas(self) -> containers.RepeatedCompositeFieldContainer[Schema]: ...
    next_page_token: str

class ListSchemaRevisionsRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        view: int | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    name: str
    view: int
    page_size: int
    page_token: str

class ListSchemaRevisionsResponse(Message):
    def __init__(
        self,
        *,
        schemas: Iterable[Schema | Mapping[str, Any]] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def schemas(self) -> containers.RepeatedCompositeFieldContainer[Schema]: ...
    next_page_token: str

class CommitSchemaRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
    ) -> None: ...
    name: str
    @property
    def schema(self) -> Schema: ...

class RollbackSchemaRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        revision_id: str | None = ...,
    ) -> None: ...
    name: str
    revision_id: str

class DeleteSchemaRevisionRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        revision_id: str | None = ...,
    ) -> None: ...
    name: str
    revision_id: str

class DeleteSchemaRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
    ) -> None: ...
    name: str

class ValidateSchemaRequest(Message):
    def __init__(
        self,
        *,
        parent: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
    ) -> None: ...
    parent: str
    @property
    def schema(self) -> Schema: ...

class ValidateSchemaResponse(Message): ...

class ValidateMessageRequest(Message):
    def __init__(
        self,
        *,
        parent: str | None = ...,
        name: str | None = ...,
        schema: Schema | Mapping[str, Any] | None = ...,
        message: bytes | None = ...,
        encoding: int | None = ...,
    ) -> None: ...
    parent: str
    name: str
    @property
    def schema(self) -> Schema: ...
    message: bytes
    encoding: int

class ValidateMessageResponse(Message): ...

class MessageStoragePolicy(Message):
    def __init__(
        self,
        *,
        allowed_persistence_regions: Iterable[str] | None = ...,
        enforce_in_transit: bool | None = ...,
    ) -> None: ...
    @property
    def allowed_persistence_regions(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    enforce_in_transit: bool

class SchemaSettings(Message):
    def __init__(
        self,
        *,
        schema: str | None = ...,
        encoding: int | None = ...,
        first_revision_id: str | None = ...,
        last_revision_id: str | None = ...,
    ) -> None: ...
    schema: str
    encoding: int
    first_revision_id: str
    last_revision_id: str

class IngestionDataSourceSettings(Message):
    class AwsKinesis(Message):
        State: EnumTypeWrapper
        STATE_UNSPECIFIED: int
        ACTIVE: int
        KINESIS_PERMISSION_DENIED: int
        PUBLISH_PERMISSION_DENIED: int
        STREAM_NOT_FOUND: int
        CONSUMER_NOT_FOUND: int
        CONFLICTING_REGION_CONSTRAINTS: int
        def __init__(
            self,
            *,
            state: int | None = ...,
            stream_arn: str | None = ...,
            consumer_arn: str | None = ...,
            aws_role_arn: str | None = ...,
            gcp_service_account: str | None = ...,
        ) -> None: ...
        state: int
        stream_arn: str
        consumer_arn: str
        aws_role_arn: str
        gcp_service_account: str
    class CloudStorage(Message):
        State: EnumTypeWrapper
        STATE_UNSPECIFIED: int
        ACTIVE: int
        CLOUD_STORAGE_PERMISSION_DENIED: int
        PUBLISH_PERMISSION_DENIED: int
        BUCKET_NOT_FOUND: int
        TOO_MANY_OBJECTS: int
        CONFLICTING_REGION_CONSTRAINTS: int
        class TextFormat(Message):
            def __init__(
                self,
                *,
                delimiter: str | None = ...,
            ) -> None: ...
            delimiter: str
        class AvroFormat(Message): ...
        class PubSubAvroFormat(Message): ...
        def __init__(
            self,
            *,
            state: int | None = ...,
            bucket: str | None = ...,
            text_format: IngestionDataSourceSettings.CloudStorage.TextFormat | Mapping[str, Any] | None = ...,
            avro_format: IngestionDataSourceSettings.CloudStorage.AvroFormat | Mapping[str, Any] | None = ...,
            pubsub_avro_format: IngestionDataSourceSettings.CloudStorage.PubSubAvroFormat | Mapping[str, Any] | None = ...,
            minimum_object_create_time: Timestamp | Mapping[str, Any] | None = ...,
            match_glob: str | None = ...,
        ) -> None: ...
        state: int
        bucket: str
        @property
        def text_format(self) -> IngestionDataSourceSettings.CloudStorage.TextFormat: ...
        @property
        def avro_format(self) -> IngestionDataSourceSettings.CloudStorage.AvroFormat: ...
        @property
        def pubsub_avro_format(self) -> IngestionDataSourceSettings.CloudStorage.PubSubAvroFormat: ...
        @property
        def minimum_object_create_time(self) -> Timestamp: ...
        match_glob: str
    class AzureEventHubs(Message):
        State: EnumTypeWrapper
        STATE_UNSPECIFIED: int
        ACTIVE: int
        EVENT_HUBS_PERMISSION_DENIED: int
        PUBLISH_PERMISSION_DENIED: int
        NAMESPACE_NOT_FOUND: int
        EVENT_HUB_NOT_FOUND: int
        SUBSCRIPTION_NOT_FOUND: int
        RESOURCE_GROUP_NOT_FOUND: int
        CONFLICTING_REGION_CONSTRAINTS: int
        def __init__(
            self,
            *,
            state: int | None = ...,
            resource_group: str | None = ...,
            namespace: str | None = ...,
            event_hub: str | None = ...,
            client_id: str | None = ...,
            tenant_id: str | None = ...,
            subscription_id: str | None = ...,
            gcp_service_account: str | None = ...,
        ) -> None: ...
        state: int
        resource_group: str
        namespace: str
        event_hub: str
        client_id: str
        tenant_id: str
        subscription_id: str
        gcp_service_account: str
    class AwsMsk(Message):
        State: EnumTypeWrapper
        STATE_UNSPECIFIED: int
        ACTIVE: int
        MSK_PERMISSION_DENIED: int
        PUBLISH_PERMISSION_DENIED: int
        CLUSTER_NOT_FOUND: int
        TOPIC_NOT_FOUND: int
        CONFLICTING_REGION_CONSTRAINTS: int
        def __init__(
            self,
            *,
            state: int | None = ...,
            cluster_arn: str | None = ...,
            topic: str | None = ...,
            aws_role_arn: str | None = ...,
            gcp_service_account: str | None = ...,
        ) -> None: ...
        state: int
        cluster_arn: str
        topic: str
        aws_role_arn: str
        gcp_service_account: str
    class ConfluentCloud(Message):
        State: EnumTypeWrapper
        STATE_UNSPECIFIED: int
        ACTIVE: int
        CONFLUENT_CLOUD_PERMISSION_DENIED: int
        PUBLISH_PERMISSION_DENIED: int
        UNREACHABLE_BOOTSTRAP_SERVER: int
        CLUSTER_NOT_FOUND: int
        TOPIC_NOT_FOUND: int
        CONFLICTING_REGION_CONSTRAINTS: int
        def __init__(
            self,
            *,
            state: int | None = ...,
            bootstrap_server: str | None = ...,
            cluster_id: str | None = ...,
            topic: str | None = ...,
            identity_pool_id: str | None = ...,
            gcp_service_account: str | None = ...,
        ) -> None: ...
        state: int
        bootstrap_server: str
        cluster_id: str
        topic: str
        identity_pool_id: str
        gcp_service_account: str
    def __init__(
        self,
        *,
        aws_kinesis: IngestionDataSourceSettings.AwsKinesis | Mapping[str, Any] | None = ...,
        cloud_storage: IngestionDataSourceSettings.CloudStorage | Mapping[str, Any] | None = ...,
        azure_event_hubs: IngestionDataSourceSettings.AzureEventHubs | Mapping[str, Any] | None = ...,
        aws_msk: IngestionDataSourceSettings.AwsMsk | Mapping[str, Any] | None = ...,
        confluent_cloud: IngestionDataSourceSettings.ConfluentCloud | Mapping[str, Any] | None = ...,
        platform_logs_settings: PlatformLogsSettings | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def aws_kinesis(self) -> IngestionDataSourceSettings.AwsKinesis: ...
    @property
    def cloud_storage(self) -> IngestionDataSourceSettings.CloudStorage: ...
    @property
    def azure_event_hubs(self) -> IngestionDataSourceSettings.AzureEventHubs: ...
    @property
    def aws_msk(self) -> IngestionDataSourceSettings.AwsMsk: ...
    @property
    def confluent_cloud(self) -> IngestionDataSourceSettings.ConfluentCloud: ...
    @property
    def platform_logs_settings(self) -> PlatformLogsSettings: ...

class PlatformLogsSettings(Message):
    Severity: EnumTypeWrapper
    SEVERITY_UNSPECIFIED: int
    DISABLED: int
    DEBUG: int
    INFO: int
    WARNING: int
    ERROR: int
    def __init__(
        self,
        *,
        severity: int | None = ...,
    ) -> None: ...
    severity: int

class IngestionFailureEvent(Message):
    class ApiViolationReason(Message): ...
    class AvroFailureReason(Message): ...
    class SchemaViolationReason(Message): ...
    class MessageTransformationFailureReason(Message): ...
    class CloudStorageFailure(Message):
        def __init__(
            self,
            *,
            bucket: str | None = ...,
            object_name: str | None = ...,
            object_generation: int | None = ...,
            avro_failure_reason: IngestionFailureEvent.AvroFailureReason | Mapping[str, Any] | None = ...,
            api_violation_reason: IngestionFailureEvent.ApiViolationReason | Mapping[str, Any] | None = ...,
            schema_violation_reason: IngestionFailureEvent.SchemaViolationReason | Mapping[str, Any] | None = ...,
            message_transformation_failure_reason: IngestionFailureEvent.MessageTransformationFailureReason | Mapping[str, Any] | None = ...,
        ) -> None: ...
        bucket: str
        object_name: str
        object_generation: int
        @property
        def avro_failure_reason(self) -> IngestionFailureEvent.AvroFailureReason: ...
        @property
        def api_violation_reason(self) -> IngestionFailureEvent.ApiViolationReason: ...
        @property
        def schema_violation_reason(self) -> IngestionFailureEvent.SchemaViolationReason: ...
        @property
        def message_transformation_failure_reason(self) -> IngestionFailureEvent.MessageTransformationFailureReason: ...
    class AwsMskFailureReason(Message):
        def __init__(
            self,
            *,
            cluster_arn: str | None = ...,
            kafka_topic: str | None = ...,
            partition_id: int | None = ...,
            offset: int | None = ...,
            api_violation_reason: IngestionFailureEvent.ApiViolationReason | Mapping[str, Any] | None = ...,
            schema_violation_reason: IngestionFailureEvent.SchemaViolationReason | Mapping[str, Any] | None = ...,
            message_transformation_failure_reason: IngestionFailureEvent.MessageTransformationFailureReason | Mapping[str, Any] | None = ...,
        ) -> None: ...
        cluster_arn: str
        kafka_topic: str
        partition_id: int
        offset: int
        @property
        def api_violation_reason(self) -> IngestionFailureEvent.ApiViolationReason: ...
        @property
        def schema_violation_reason(self) -> IngestionFailureEvent.SchemaViolationReason: ...
        @property
        def message_transformation_failure_reason(self) -> IngestionFailureEvent.MessageTransformationFailureReason: ...
    class AzureEventHubsFailureReason(Message):
        def __init__(
            self,
            *,
            namespace: str | None = ...,
            event_hub: str | None = ...,
            partition_id: int | None = ...,
            offset: int | None = ...,
            api_violation_reason: IngestionFailureEvent.ApiViolationReason | Mapping[str, Any] | None = ...,
            schema_violation_reason: IngestionFailureEvent.SchemaViolationReason | Mapping[str, Any] | None = ...,
            message_transformation_failure_reason: IngestionFailureEvent.MessageTransformationFailureReason | Mapping[str, Any] | None = ...,
        ) -> None: ...
        namespace: str
        event_hub: str
        partition_id: int
        offset: int
        @property
        def api_violation_reason(self) -> IngestionFailureEvent.ApiViolationReason: ...
        @property
        def schema_violation_reason(self) -> IngestionFailureEvent.SchemaViolationReason: ...
        @property
        def message_transformation_failure_reason(self) -> IngestionFailureEvent.MessageTransformationFailureReason: ...
    class ConfluentCloudFailureReason(Message):
        def __init__(
            self,
            *,
            cluster_id: str | None = ...,
            kafka_topic: str | None = ...,
            partition_id: int | None = ...,
            offset: int | None = ...,
            api_violation_reason: IngestionFailureEvent.ApiViolationReason | Mapping[str, Any] | None = ...,
            schema_violation_reason: IngestionFailureEvent.SchemaViolationReason | Mapping[str, Any] | None = ...,
            message_transformation_failure_reason: IngestionFailureEvent.MessageTransformationFailureReason | Mapping[str, Any] | None = ...,
        ) -> None: ...
        cluster_id: str
        kafka_topic: str
        partition_id: int
        offset: int
        @property
        def api_violation_reason(self) -> IngestionFailureEvent.ApiViolationReason: ...
        @property
        def schema_violation_reason(self) -> IngestionFailureEvent.SchemaViolationReason: ...
        @property
        def message_transformation_failure_reason(self) -> IngestionFailureEvent.MessageTransformationFailureReason: ...
    class AwsKinesisFailureReason(Message):
        def __init__(
            self,
            *,
            stream_arn: str | None = ...,
            partition_key: str | None = ...,
            sequence_number: str | None = ...,
            schema_violation_reason: IngestionFailureEvent.SchemaViolationReason | Mapping[str, Any] | None = ...,
            message_transformation_failure_reason: IngestionFailureEvent.MessageTransformationFailureReason | Mapping[str, Any] | None = ...,
            api_violation_reason: IngestionFailureEvent.ApiViolationReason | Mapping[str, Any] | None = ...,
        ) -> None: ...
        stream_arn: str
        partition_key: str
        sequence_number: str
        @property
        def schema_violation_reason(self) -> IngestionFailureEvent.SchemaViolationReason: ...
        @property
        def message_transformation_failure_reason(self) -> IngestionFailureEvent.MessageTransformationFailureReason: ...
        @property
        def api_violation_reason(self) -> IngestionFailureEvent.ApiViolationReason: ...
    def __init__(
        self,
        *,
        topic: str | None = ...,
        error_message: str | None = ...,
        cloud_storage_failure: IngestionFailureEvent.CloudStorageFailure | Mapping[str, Any] | None = ...,
        aws_msk_failure: IngestionFailureEvent.AwsMskFailureReason | Mapping[str, Any] | None = ...,
        azure_event_hubs_failure: IngestionFailureEvent.AzureEventHubsFailureReason | Mapping[str, Any] | None = ...,
        confluent_cloud_failure: IngestionFailureEvent.ConfluentCloudFailureReason | Mapping[str, Any] | None = ...,
        aws_kinesis_failure: IngestionFailureEvent.AwsKinesisFailureReason | Mapping[str, Any] | None = ...,
    ) -> None: ...
    topic: str
    error_message: str
    @property
    def cloud_storage_failure(self) -> IngestionFailureEvent.CloudStorageFailure: ...
    @property
    def aws_msk_failure(self) -> IngestionFailureEvent.AwsMskFailureReason: ...
    @property
    def azure_event_hubs_failure(self) -> IngestionFailureEvent.AzureEventHubsFailureReason: ...
    @property
    def confluent_cloud_failure(self) -> IngestionFailureEvent.ConfluentCloudFailureReason: ...
    @property
    def aws_kinesis_failure(self) -> IngestionFailureEvent.AwsKinesisFailureReason: ...

class JavaScriptUDF(Message):
    def __init__(
        self,
        *,
        function_name: str | None = ...,
        code: str | None = ...,
    ) -> None: ...
    function_name: str
    code: str

class Compression(Message):
    CompressionAlgorithm: EnumTypeWrapper
    COMPRESSION_ALGORITHM_UNSPECIFIED: int
    ZLIB: int
    ZSTD: int
    CompressionMode: EnumTypeWrapper
    COMPRESSION_MODE_UNSPECIFIED: int
    COMPRESS: int
    DECOMPRESS: int
    def __init__(
        self,
        *,
        compression_algorithm: int | None = ...,
        compression_mode: int | None = ...,
    ) -> None: ...
    compression_algorithm: int
    compression_mode: int

class AIInference(Message):
    class UnstructuredInference(Message):
        def __init__(
            self,
            *,
            parameters: Struct | Mapping[str, Any] | None = ...,
        ) -> None: ...
        @property
        def parameters(self) -> Struct: ...
    def __init__(
        self,
        *,
        endpoint: str | None = ...,
        unstructured_inference: AIInference.UnstructuredInference | Mapping[str, Any] | None = ...,
        service_account_email: str | None = ...,
    ) -> None: ...
    endpoint: str
    @property
    def unstructured_inference(self) -> AIInference.UnstructuredInference: ...
    service_account_email: str

class MessageTransform(Message):
    def __init__(
        self,
        *,
        javascript_udf: JavaScriptUDF | Mapping[str, Any] | None = ...,
        compression: Compression | Mapping[str, Any] | None = ...,
        ai_inference: AIInference | Mapping[str, Any] | None = ...,
        enabled: bool | None = ...,
        disabled: bool | None = ...,
    ) -> None: ...
    @property
    def javascript_udf(self) -> JavaScriptUDF: ...
    @property
    def compression(self) -> Compression: ...
    @property
    def ai_inference(self) -> AIInference: ...
    enabled: bool
    disabled: bool

class Topic(Message):
    State: EnumTypeWrapper
    STATE_UNSPECIFIED: int
    ACTIVE: int
    INGESTION_RESOURCE_ERROR: int
    def __init__(
        self,
        *,
        name: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        message_storage_policy: MessageStoragePolicy | Mapping[str, Any] | None = ...,
        kms_key_name: str | None = ...,
        schema_settings: SchemaSettings | Mapping[str, Any] | None = ...,
        satisfies_pzs: bool | None = ...,
        message_retention_duration: Duration | Mapping[str, Any] | None = ...,
        state: int | None = ...,
        ingestion_data_source_settings: IngestionDataSourceSettings | Mapping[str, Any] | None = ...,
        message_transforms: Iterable[MessageTransform | Mapping[str, Any]] | None = ...,
        tags: Mapping[str, str] | None = ...,
    ) -> None: ...
    name: str
    @property
    def labels(self) -> containers.ScalarMap[str, str]: ...
    @property
    def message_storage_policy(self) -> MessageStoragePolicy: ...
    kms_key_name: str
    @property
    def schema_settings(self) -> SchemaSettings: ...
    satisfies_pzs: bool
    @property
    def message_retention_duration(self) -> Duration: ...
    state: int
    @property
    def ingestion_data_source_settings(self) -> IngestionDataSourceSettings: ...
    @property
    def message_transforms(self) -> containers.RepeatedCompositeFieldContainer[MessageTransform]: ...
    @property
    def tags(self) -> containers.ScalarMap[str, str]: ...

class PubsubMessage(Message):
    def __init__(
        self,
        *,
        data: bytes | None = ...,
        attributes: Mapping[str, str] | None = ...,
        message_id: str | None = ...,
        publish_time: Timestamp | Mapping[str, Any] | None = ...,
        ordering_key: str | None = ...,
    ) -> None: ...
    data: bytes
    @property
    def attributes(self) -> containers.ScalarMap[str, str]: ...
    message_id: str
    @property
    def publish_time(self) -> Timestamp: ...
    ordering_key: str

class GetTopicRequest(Message):
    def __init__(
        self,
        *,
        topic: str | None = ...,
    ) -> None: ...
    topic: str

class UpdateTopicRequest(Message):
    def __init__(
        self,
        *,
        topic: Topic | Mapping[str, Any] | None = ...,
        update_mask: FieldMask | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def topic(self) -> Topic: ...
    @property
    def update_mask(self) -> FieldMask: ...

class PublishRequest(Message):
    def __init__(
        self,
        *,
        topic: str | None = ...,
        messages: Iterable[PubsubMessage | Mapping[str, Any]] | None = ...,
    ) -> None: ...
    topic: str
    @property
    def messages(self) -> containers.RepeatedCompositeFieldContainer[PubsubMessage]: ...

class PublishResponse(Message):
    def __init__(
        self,
        *,
        message_ids: Iterable[str] | None = ...,
    ) -> None: ...
    @property
    def message_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class ListTopicsRequest(Message):
    def __init__(
        self,
        *,
        project: str | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    project: str
    page_size: int
    page_token: str

class ListTopicsResponse(Message):
    def __init__(
        self,
        *,
        topics: Iterable[Topic | Mapping[str, Any]] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def topics(self) -> containers.RepeatedCompositeFieldContainer[Topic]: ...
    next_page_token: str

class ListTopicSubscriptionsRequest(Message):
    def __init__(
        self,
        *,
        topic: str | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    topic: str
    page_size: int
    page_token: str

class ListTopicSubscriptionsResponse(Message):
    def __init__(
        self,
        *,
        subscriptions: Iterable[str] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def subscriptions(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    next_page_token: str

class ListTopicSnapshotsRequest(Message):
    def __init__(
        self,
        *,
        topic: str | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    topic: str
    page_size: int
    page_token: str

class ListTopicSnapshotsResponse(Message):
    def __init__(
        self,
        *,
        snapshots: Iterable[str] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def snapshots(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    next_page_token: str

class DeleteTopicRequest(Message):
    def __init__(
        self,
        *,
        topic: str | None = ...,
    ) -> None: ...
    topic: str

class DetachSubscriptionRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
    ) -> None: ...
    subscription: str

class DetachSubscriptionResponse(Message): ...

class Subscription(Message):
    State: EnumTypeWrapper
    STATE_UNSPECIFIED: int
    ACTIVE: int
    RESOURCE_ERROR: int
    class AnalyticsHubSubscriptionInfo(Message):
        def __init__(
            self,
            *,
            listing: str | None = ...,
            subscription: str | None = ...,
        ) -> None: ...
        listing: str
        subscription: str
    def __init__(
        self,
        *,
        name: str | None = ...,
        topic: str | None = ...,
        push_config: PushConfig | Mapping[str, Any] | None = ...,
        bigquery_config: BigQueryConfig | Mapping[str, Any] | None = ...,
        cloud_storage_config: CloudStorageConfig | Mapping[str, Any] | None = ...,
        bigtable_config: BigtableConfig | Mapping[str, Any] | None = ...,
        ack_deadline_seconds: int | None = ...,
        retain_acked_messages: bool | None = ...,
        message_retention_duration: Duration | Mapping[str, Any] | None = ...,
        labels: Mapping[str, str] | None = ...,
        enable_message_ordering: bool | None = ...,
        expiration_policy: ExpirationPolicy | Mapping[str, Any] | None = ...,
        filter: str | None = ...,
        dead_letter_policy: DeadLetterPolicy | Mapping[str, Any] | None = ...,
        retry_policy: RetryPolicy | Mapping[str, Any] | None = ...,
        detached: bool | None = ...,
        enable_exactly_once_delivery: bool | None = ...,
        topic_message_retention_duration: Duration | Mapping[str, Any] | None = ...,
        state: int | None = ...,
        analytics_hub_subscription_info: Subscription.AnalyticsHubSubscriptionInfo | Mapping[str, Any] | None = ...,
        message_transforms: Iterable[MessageTransform | Mapping[str, Any]] | None = ...,
        tags: Mapping[str, str] | None = ...,
    ) -> None: ...
    name: str
    topic: str
    @property
    def push_config(self) -> PushConfig: ...
    @property
    def bigquery_config(self) -> BigQueryConfig: ...
    @property
    def cloud_storage_config(self) -> CloudStorageConfig: ...
    @property
    def bigtable_config(self) -> BigtableConfig: ...
    ack_deadline_seconds: int
    retain_acked_messages: bool
    @property
    def message_retention_duration(self) -> Duration: ...
    @property
    def labels(self) -> containers.ScalarMap[str, str]: ...
    enable_message_ordering: bool
    @property
    def expiration_policy(self) -> ExpirationPolicy: ...
    filter: str
    @property
    def dead_letter_policy(self) -> DeadLetterPolicy: ...
    @property
    def retry_policy(self) -> RetryPolicy: ...
    detached: bool
    enable_exactly_once_delivery: bool
    @property
    def topic_message_retention_duration(self) -> Duration: ...
    state: int
    @property
    def analytics_hub_subscription_info(self) -> Subscription.AnalyticsHubSubscriptionInfo: ...
    @property
    def message_transforms(self) -> containers.RepeatedCompositeFieldContainer[MessageTransform]: ...
    @property
    def tags(self) -> containers.ScalarMap[str, str]: ...

class RetryPolicy(Message):
    def __init__(
        self,
        *,
        minimum_backoff: Duration | Mapping[str, Any] | None = ...,
        maximum_backoff: Duration | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def minimum_backoff(self) -> Duration: ...
    @property
    def maximum_backoff(self) -> Duration: ...

class DeadLetterPolicy(Message):
    def __init__(
        self,
        *,
        dead_letter_topic: str | None = ...,
        max_delivery_attempts: int | None = ...,
    ) -> None: ...
    dead_letter_topic: str
    max_delivery_attempts: int

class ExpirationPolicy(Message):
    def __init__(
        self,
        *,
        ttl: Duration | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def ttl(self) -> Duration: ...

class PushConfig(Message):
    class OidcToken(Message):
        def __init__(
            self,
            *,
            service_account_email: str | None = ...,
            audience: str | None = ...,
        ) -> None: ...
        service_account_email: str
        audience: str
    class PubsubWrapper(Message): ...
    class NoWrapper(Message):
        def __init__(
            self,
            *,
            write_metadata: bool | None = ...,
        ) -> None: ...
        write_metadata: bool
    def __init__(
        self,
        *,
        push_endpoint: str | None = ...,
        attributes: Mapping[str, str] | None = ...,
        oidc_token: PushConfig.OidcToken | Mapping[str, Any] | None = ...,
        pubsub_wrapper: PushConfig.PubsubWrapper | Mapping[str, Any] | None = ...,
        no_wrapper: PushConfig.NoWrapper | Mapping[str, Any] | None = ...,
    ) -> None: ...
    push_endpoint: str
    @property
    def attributes(self) -> containers.ScalarMap[str, str]: ...
    @property
    def oidc_token(self) -> PushConfig.OidcToken: ...
    @property
    def pubsub_wrapper(self) -> PushConfig.PubsubWrapper: ...
    @property
    def no_wrapper(self) -> PushConfig.NoWrapper: ...

class BigQueryConfig(Message):
    State: EnumTypeWrapper
    STATE_UNSPECIFIED: int
    ACTIVE: int
    PERMISSION_DENIED: int
    NOT_FOUND: int
    SCHEMA_MISMATCH: int
    IN_TRANSIT_LOCATION_RESTRICTION: int
    VERTEX_AI_LOCATION_RESTRICTION: int
    def __init__(
        self,
        *,
        table: str | None = ...,
        use_topic_schema: bool | None = ...,
        write_metadata: bool | None = ...,
        drop_unknown_fields: bool | None = ...,
        state: int | None = ...,
        use_table_schema: bool | None = ...,
        service_account_email: str | None = ...,
    ) -> None: ...
    table: str
    use_topic_schema: bool
    write_metadata: bool
    drop_unknown_fields: bool
    state: int
    use_table_schema: bool
    service_account_email: str

class BigtableConfig(Message):
    State: EnumTypeWrapper
    STATE_UNSPECIFIED: int
    ACTIVE: int
    NOT_FOUND: int
    APP_PROFILE_MISCONFIGURED: int
    PERMISSION_DENIED: int
    SCHEMA_MISMATCH: int
    IN_TRANSIT_LOCATION_RESTRICTION: int
    VERTEX_AI_LOCATION_RESTRICTION: int
    class ColumnFamilyMapping(Message):
        class RowKeySchema(Message): ...
        class DelimitedKey(Message):
            def __init__(
                self,
                *,
                key_fields: Iterable[str] | None = ...,
                delimiter: bytes | None = ...,
            ) -> None: ...
            @property
            def key_fields(self) -> containers.RepeatedScalarFieldContainer[str]: ...
            delimiter: bytes
        def __init__(
            self,
            *,
            row_key_schema: BigtableConfig.ColumnFamilyMapping.RowKeySchema | Mapping[str, Any] | None = ...,
            delimited_key: BigtableConfig.ColumnFamilyMapping.DelimitedKey | Mapping[str, Any] | None = ...,
        ) -> None: ...
        @property
        def row_key_schema(self) -> BigtableConfig.ColumnFamilyMapping.RowKeySchema: ...
        @property
        def delimited_key(self) -> BigtableConfig.ColumnFamilyMapping.DelimitedKey: ...
    def __init__(
        self,
        *,
        table: str | None = ...,
        app_profile_id: str | None = ...,
        service_account_email: str | None = ...,
        write_metadata: bool | None = ...,
        column_family_mapping: BigtableConfig.ColumnFamilyMapping | Mapping[str, Any] | None = ...,
        state: int | None = ...,
    ) -> None: ...
    table: str
    app_profile_id: str
    service_account_email: str
    write_metadata: bool
    @property
    def column_family_mapping(self) -> BigtableConfig.ColumnFamilyMapping: ...
    state: int

class CloudStorageConfig(Message):
    State: EnumTypeWrapper
    STATE_UNSPECIFIED: int
    ACTIVE: int
    PERMISSION_DENIED: int
    NOT_FOUND: int
    IN_TRANSIT_LOCATION_RESTRICTION: int
    SCHEMA_MISMATCH: int
    VERTEX_AI_LOCATION_RESTRICTION: int
    class TextConfig(Message): ...
    class AvroConfig(Message):
        def __init__(
            self,
            *,
            write_metadata: bool | None = ...,
            use_topic_schema: bool | None = ...,
        ) -> None: ...
        write_metadata: bool
        use_topic_schema: bool
    def __init__(
        self,
        *,
        bucket: str | None = ...,
        filename_prefix: str | None = ...,
        filename_suffix: str | None = ...,
        filename_datetime_format: str | None = ...,
        text_config: CloudStorageConfig.TextConfig | Mapping[str, Any] | None = ...,
        avro_config: CloudStorageConfig.AvroConfig | Mapping[str, Any] | None = ...,
        max_duration: Duration | Mapping[str, Any] | None = ...,
        max_bytes: int | None = ...,
        max_messages: int | None = ...,
        state: int | None = ...,
        service_account_email: str | None = ...,
    ) -> None: ...
    bucket: str
    filename_prefix: str
    filename_suffix: str
    filename_datetime_format: str
    @property
    def text_config(self) -> CloudStorageConfig.TextConfig: ...
    @property
    def avro_config(self) -> CloudStorageConfig.AvroConfig: ...
    @property
    def max_duration(self) -> Duration: ...
    max_bytes: int
    max_messages: int
    state: int
    service_account_email: str

class ReceivedMessage(Message):
    def __init__(
        self,
        *,
        ack_id: str | None = ...,
        message: PubsubMessage | Mapping[str, Any] | None = ...,
        delivery_attempt: int | None = ...,
    ) -> None: ...
    ack_id: str
    @property
    def message(self) -> PubsubMessage: ...
    delivery_attempt: int

class GetSubscriptionRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
    ) -> None: ...
    subscription: str

class UpdateSubscriptionRequest(Message):
    def __init__(
        self,
        *,
        subscription: Subscription | Mapping[str, Any] | None = ...,
        update_mask: FieldMask | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def subscription(self) -> Subscription: ...
    @property
    def update_mask(self) -> FieldMask: ...

class ListSubscriptionsRequest(Message):
    def __init__(
        self,
        *,
        project: str | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    project: str
    page_size: int
    page_token: str

class ListSubscriptionsResponse(Message):
    def __init__(
        self,
        *,
        subscriptions: Iterable[Subscription | Mapping[str, Any]] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def subscriptions(self) -> containers.RepeatedCompositeFieldContainer[Subscription]: ...
    next_page_token: str

class DeleteSubscriptionRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
    ) -> None: ...
    subscription: str

class ModifyPushConfigRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        push_config: PushConfig | Mapping[str, Any] | None = ...,
    ) -> None: ...
    subscription: str
    @property
    def push_config(self) -> PushConfig: ...

class PullRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        return_immediately: bool | None = ...,
        max_messages: int | None = ...,
    ) -> None: ...
    subscription: str
    return_immediately: bool
    max_messages: int

class PullResponse(Message):
    def __init__(
        self,
        *,
        received_messages: Iterable[ReceivedMessage | Mapping[str, Any]] | None = ...,
    ) -> None: ...
    @property
    def received_messages(self) -> containers.RepeatedCompositeFieldContainer[ReceivedMessage]: ...

class ModifyAckDeadlineRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        ack_ids: Iterable[str] | None = ...,
        ack_deadline_seconds: int | None = ...,
    ) -> None: ...
    subscription: str
    @property
    def ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    ack_deadline_seconds: int

class AcknowledgeRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        ack_ids: Iterable[str] | None = ...,
    ) -> None: ...
    subscription: str
    @property
    def ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...

class StreamingPullRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        ack_ids: Iterable[str] | None = ...,
        modify_deadline_seconds: Iterable[int] | None = ...,
        modify_deadline_ack_ids: Iterable[str] | None = ...,
        stream_ack_deadline_seconds: int | None = ...,
        client_id: str | None = ...,
        max_outstanding_messages: int | None = ...,
        max_outstanding_bytes: int | None = ...,
        protocol_version: int | None = ...,
    ) -> None: ...
    subscription: str
    @property
    def ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    @property
    def modify_deadline_seconds(self) -> containers.RepeatedScalarFieldContainer[int]: ...
    @property
    def modify_deadline_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    stream_ack_deadline_seconds: int
    client_id: str
    max_outstanding_messages: int
    max_outstanding_bytes: int
    protocol_version: int

class StreamingPullResponse(Message):
    class AcknowledgeConfirmation(Message):
        def __init__(
            self,
            *,
            ack_ids: Iterable[str] | None = ...,
            invalid_ack_ids: Iterable[str] | None = ...,
            unordered_ack_ids: Iterable[str] | None = ...,
            temporary_failed_ack_ids: Iterable[str] | None = ...,
        ) -> None: ...
        @property
        def ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
        @property
        def invalid_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
        @property
        def unordered_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
        @property
        def temporary_failed_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    class ModifyAckDeadlineConfirmation(Message):
        def __init__(
            self,
            *,
            ack_ids: Iterable[str] | None = ...,
            invalid_ack_ids: Iterable[str] | None = ...,
            temporary_failed_ack_ids: Iterable[str] | None = ...,
        ) -> None: ...
        @property
        def ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
        @property
        def invalid_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
        @property
        def temporary_failed_ack_ids(self) -> containers.RepeatedScalarFieldContainer[str]: ...
    class SubscriptionProperties(Message):
        def __init__(
            self,
            *,
            exactly_once_delivery_enabled: bool | None = ...,
            message_ordering_enabled: bool | None = ...,
        ) -> None: ...
        exactly_once_delivery_enabled: bool
        message_ordering_enabled: bool
    def __init__(
        self,
        *,
        received_messages: Iterable[ReceivedMessage | Mapping[str, Any]] | None = ...,
        acknowledge_confirmation: StreamingPullResponse.AcknowledgeConfirmation | Mapping[str, Any] | None = ...,
        modify_ack_deadline_confirmation: StreamingPullResponse.ModifyAckDeadlineConfirmation | Mapping[str, Any] | None = ...,
        subscription_properties: StreamingPullResponse.SubscriptionProperties | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def received_messages(self) -> containers.RepeatedCompositeFieldContainer[ReceivedMessage]: ...
    @property
    def acknowledge_confirmation(self) -> StreamingPullResponse.AcknowledgeConfirmation: ...
    @property
    def modify_ack_deadline_confirmation(self) -> StreamingPullResponse.ModifyAckDeadlineConfirmation: ...
    @property
    def subscription_properties(self) -> StreamingPullResponse.SubscriptionProperties: ...

class CreateSnapshotRequest(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        subscription: str | None = ...,
        labels: Mapping[str, str] | None = ...,
        tags: Mapping[str, str] | None = ...,
    ) -> None: ...
    name: str
    subscription: str
    @property
    def labels(self) -> containers.ScalarMap[str, str]: ...
    @property
    def tags(self) -> containers.ScalarMap[str, str]: ...

class UpdateSnapshotRequest(Message):
    def __init__(
        self,
        *,
        snapshot: Snapshot | Mapping[str, Any] | None = ...,
        update_mask: FieldMask | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def snapshot(self) -> Snapshot: ...
    @property
    def update_mask(self) -> FieldMask: ...

class Snapshot(Message):
    def __init__(
        self,
        *,
        name: str | None = ...,
        topic: str | None = ...,
        expire_time: Timestamp | Mapping[str, Any] | None = ...,
        labels: Mapping[str, str] | None = ...,
    ) -> None: ...
    name: str
    topic: str
    @property
    def expire_time(self) -> Timestamp: ...
    @property
    def labels(self) -> containers.ScalarMap[str, str]: ...

class GetSnapshotRequest(Message):
    def __init__(
        self,
        *,
        snapshot: str | None = ...,
    ) -> None: ...
    snapshot: str

class ListSnapshotsRequest(Message):
    def __init__(
        self,
        *,
        project: str | None = ...,
        page_size: int | None = ...,
        page_token: str | None = ...,
    ) -> None: ...
    project: str
    page_size: int
    page_token: str

class ListSnapshotsResponse(Message):
    def __init__(
        self,
        *,
        snapshots: Iterable[Snapshot | Mapping[str, Any]] | None = ...,
        next_page_token: str | None = ...,
    ) -> None: ...
    @property
    def snapshots(self) -> containers.RepeatedCompositeFieldContainer[Snapshot]: ...
    next_page_token: str

class DeleteSnapshotRequest(Message):
    def __init__(
        self,
        *,
        snapshot: str | None = ...,
    ) -> None: ...
    snapshot: str

class SeekRequest(Message):
    def __init__(
        self,
        *,
        subscription: str | None = ...,
        time: Timestamp | Mapping[str, Any] | None = ...,
        snapshot: str | None = ...,
    ) -> None: ...
    subscription: str
    @property
    def time(self) -> Timestamp: ...
    snapshot: str

class SeekResponse(Message): ...

class PubsubClientTelemetry(Message):
    class PublishOperation(Message):
        def __init__(
            self,
            *,
            hedged_attempt_count: int | None = ...,
            publish_start_time: Timestamp | Mapping[str, Any] | None = ...,
        ) -> None: ...
        hedged_attempt_count: int
        @property
        def publish_start_time(self) -> Timestamp: ...
    def __init__(
        self,
        *,
        publish_operation: PubsubClientTelemetry.PublishOperation | Mapping[str, Any] | None = ...,
    ) -> None: ...
    @property
    def publish_operation(self) -> PubsubClientTelemetry.PublishOperation: ...
