// Which of the three versions of a function, each compiled for another instruction set, this processor can run.
#pragma once

namespace kullback {

template <typename Function>
Function best_of([[maybe_unused]] Function baseline, [[maybe_unused]] Function v3, [[maybe_unused]] Function v4) {
#ifdef KULLBACK_X86_LEVELS
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return v4;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return v3;
#endif
  return baseline;
}

#ifdef KULLBACK_X86_LEVELS
#define KULLBACK_BEST(function) best_of(baseline::function, v3::function, v4::function)
#else
#define KULLBACK_BEST(function) best_of(baseline::function, baseline::function, baseline::function)
#endif

}  // namespace kullback
