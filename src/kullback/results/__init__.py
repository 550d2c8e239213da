"""The parts that results share: an estimate, a value with its error, and a gate's verdict."""
