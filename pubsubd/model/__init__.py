"""The vocabulary of the service: names, messages, limits, refusals and what makes a resource valid.

Pure: no I/O, no clock, no chance, no asyncio. Every function is a plain call on messages; `DESIGN.md` in
this folder says in which order things are checked and what was chosen where the public definition is open.
"""
