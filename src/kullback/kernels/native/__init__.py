"""The kernels in C++ for the CPU: the library, and its operators on rows of logits, kl_div terms and closed forms."""
