"""Make `descriptors.binpb` and the stubs from `proto/`: run `python -m pubsubd.wire.generate` after an edit.

Needs a checkout and grpcio-tools, which carries protoc; the server needs neither.
"""

import sys
import tempfile
from pathlib import Path

import grpc_tools  # type: ignore[import-untyped]  # It has no types, and no package of stubs for it exists.
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

from pubsubd.wire.pool import DESCRIPTORS
from pubsubd.wire.stubs import stub

HERE = Path(__file__).parent
PROTO = HERE.parents[1] / "proto"


def compile_descriptors() -> FileDescriptorSet:
    """Return everything in `proto/`, imports included, each file after those it imports."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.binpb"
        arguments = [
            "protoc",
            f"--proto_path={PROTO}",
            f"--proto_path={Path(grpc_tools.__file__).with_name('_proto')}",
            "--include_imports",
            f"--descriptor_set_out={out}",
            *sources,
        ]
        if protoc.main(arguments) != 0:
            sys.exit("protoc refused the files in proto/; its message is above.")
        return FileDescriptorSet.FromString(out.read_bytes())


def make_stubs(descriptors: FileDescriptorSet) -> dict[str, str]:
    """Return the text of each stub by its file name."""
    return {"pb.pyi": stub(descriptors, "google."), "admin_pb.pyi": stub(descriptors, "pubsubd.admin.v1")}


def main() -> None:
    descriptors = compile_descriptors()
    DESCRIPTORS.write_bytes(descriptors.SerializeToString(deterministic=True))
    for name, text in make_stubs(descriptors).items():
        (HERE / name).write_text(text)


if __name__ == "__main__":
    main()
