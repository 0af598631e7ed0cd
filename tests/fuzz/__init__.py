"""Coverage-guided fuzzing of everything that parses bytes from outside.

`python -m tests.fuzz` runs each target in a process of its own, under atheris (libFuzzer), and tells what it
found. A target (`targets`) is a function of some bytes that raises when a promise is broken: whatever the
bytes, nothing but a refusal comes out, a refusal says what is wrong and changes nothing, and what was
accepted means what it says. `source` turns bytes into requests, names and numbers, so that the fuzzer's
changes of bytes become changes of meaning; part of the inputs are taken as raw bytes all the same.

The default tests run every target over its seeds and some hundred damaged ones, without atheris. An input
that was found to break something becomes a test by name where the rule at fault is tested.
"""
