"""Dataclasses for results: an estimate, a value with its standard error, a test, a finding, and a gate's verdict."""
