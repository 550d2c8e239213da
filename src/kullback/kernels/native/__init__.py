"""The C++ kernels for the CPU: the library, and its operators for rows of logits, kl_div terms and closed forms."""
