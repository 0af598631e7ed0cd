"""The table of RPCs, read from the descriptors."""

from dataclasses import dataclass

from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from pubsubd.wire.pool import FILES, POOL


@dataclass(frozen=True, slots=True)
class Method:
    """One RPC: what it takes, what it answers, and which sides stream."""

    service: str  # full name, as google.pubsub.v1.Publisher
    name: str
    request: type[Message]
    response: type[Message]
    client_streaming: bool
    server_streaming: bool

    @property
    def path(self) -> str:
        """The HTTP/2 path of the method, as gRPC writes it."""
        return f"/{self.service}/{self.name}"


def _method(method: MethodDescriptor) -> Method:
    return Method(
        service=method.containing_service.full_name,
        name=method.name,
        request=GetMessageClass(method.input_type),
        response=GetMessageClass(method.output_type),
        client_streaming=method.client_streaming,
        server_streaming=method.server_streaming,
    )


def _services() -> dict[str, dict[str, Method]]:
    return {
        service.full_name: {method.name: _method(method) for method in service.methods}
        for name in FILES
        for service in POOL.FindFileByName(name).services_by_name.values()
    }


# Full service name -> method name -> method.
SERVICES = _services()
