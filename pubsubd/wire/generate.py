"""Make `descriptors.binpb` from `proto/`: run `python -m pubsubd.wire.generate` after an edit there.

Needs a checkout and grpcio-tools, which carries protoc; the server itself needs neither.
"""

import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

from pubsubd.wire.pool import DESCRIPTORS

PROTO = Path(__file__).parents[2] / "proto"


def compile_descriptors() -> bytes:
    """Return the serialized FileDescriptorSet of everything in `proto/`, imports included."""
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    well_known = Path(grpc_tools.__file__).with_name("_proto")
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "out.binpb"
        arguments = [
            "protoc",
            f"--proto_path={PROTO}",
            f"--proto_path={well_known}",
            "--include_imports",
            f"--descriptor_set_out={out}",
            *sources,
        ]
        if protoc.main(arguments) != 0:
            sys.exit("protoc refused the files in proto/; its message is above.")
        return out.read_bytes()


def main() -> None:
    DESCRIPTORS.write_bytes(compile_descriptors())


if __name__ == "__main__":
    main()
