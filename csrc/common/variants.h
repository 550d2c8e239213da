// Kernels are compiled once for every instruction set, each time into a namespace named KULLBACK_ISA (CMakeLists.txt
// lists them); the operators call the best that this processor runs.
#pragma once

#define KULLBACK_INLINE static inline __attribute__((always_inline))

// Declares a kernel in every one of these namespaces.
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
template <typename Function>
Function best_of(Function baseline, Function v3, Function v4) {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return v4;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return v3;
  return baseline;
}
#endif

}  // namespace kullback
