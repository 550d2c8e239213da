"""The parts that results share: a gate's verdict."""
