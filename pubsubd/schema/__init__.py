"""Schemas: what a definition means, whether a message fits it, whether revisions go together. Pure.

See DESIGN.md.
"""
