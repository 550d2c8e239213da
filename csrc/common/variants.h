// Kernels are compiled once for every instruction set, each time into the namespace KULLBACK_ISA (CMakeLists.txt lists
// the namespaces). The operators call the best variant that this processor supports.
#pragma once

#ifdef KULLBACK_X86_LEVELS
#include <cpuid.h>
#endif

#define KULLBACK_INLINE static inline __attribute__((always_inline))

// Declares a kernel in the namespace of each instruction set.
#define KULLBACK_DECLARE_VARIANTS(declaration) \
  namespace baseline {                         \
  declaration;                                 \
  }                                            \
  namespace v3 {                               \
  declaration;                                 \
  }                                            \
  namespace v4 {                               \
  declaration;                                 \
  }

#ifdef KULLBACK_X86_LEVELS
#define KULLBACK_BEST(function) best_of(baseline::function, v3::function, v4::function)
#else
#define KULLBACK_BEST(function) baseline::function
#endif

namespace kullback {

#ifdef KULLBACK_X86_LEVELS
// Returns 2 for AVX-512, 1 for AVX2, else 0. A level includes all extensions that the compiler assumes with it.
inline int find_level() {
  __builtin_cpu_init();
  unsigned a, b, c = 0, d;
  const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);  // older Clang has no name for f16c
  if (!(has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
        __builtin_cpu_supports("bmi2"))) {
    return 0;
  }
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
             ? 2
             : 1;
}

template <typename Function>
Function best_of(Function baseline, Function v3, Function v4) {
  static const int level = find_level();
  return level == 2 ? v4 : level == 1 ? v3 : baseline;
}
#endif

}  // namespace kullback
