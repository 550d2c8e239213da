"""The kernels in C++ for the CPU."""
