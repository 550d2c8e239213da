"""The parts that results share: an estimate and a gate's verdict."""
