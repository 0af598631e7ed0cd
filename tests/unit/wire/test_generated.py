"""What is committed beside the code is what `proto/` says today."""

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from pubsubd.wire import generate
from pubsubd.wire.pool import DESCRIPTORS

ADVICE = "proto/ was edited: run `python -m pubsubd.wire.generate` and commit what it writes"


def own_files(descriptors):
    # Each protoc brings its own edition of the well-known types: the same messages, other file options.
    return {file.name: file for file in descriptors.file if not file.name.startswith("google/protobuf/")}


def well_known_messages(descriptors):
    return {
        file.name: list(file.message_type)
        for file in descriptors.file
        if file.name.startswith("google/protobuf/")
    }


def test_the_committed_descriptors_are_what_protoc_makes_of_proto():
    committed = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())
    compiled = generate.compile_descriptors()

    assert own_files(committed) == own_files(compiled), ADVICE
    assert well_known_messages(committed) == well_known_messages(compiled), ADVICE


def test_the_committed_stubs_are_what_the_descriptors_say():
    committed = FileDescriptorSet.FromString(DESCRIPTORS.read_bytes())

    for name, text in generate.make_stubs(committed).items():
        assert DESCRIPTORS.with_name(name).read_text() == text, ADVICE
