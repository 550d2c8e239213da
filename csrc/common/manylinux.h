// Included first in every file of a wheel for PyPI (KULLBACK_MANYLINUX in CMakeLists.txt). The compiler of these wheels
// is newer than the oldest supported glibc and libstdc++. This file restricts the library to symbols of those versions.
#pragma once

// std::shared_ptr reads this flag of glibc 2.32: whether the process has a single thread. In this library it is always
// false.
#define __libc_single_threaded kullback_single_threaded
extern "C" {
__attribute__((weak, visibility("hidden"))) char kullback_single_threaded;
}

// A copy of a std::vector refers to this function of GLIBCXX_3.4.29. The definition here replaces it in this library.
#include <new>
namespace std {
[[noreturn]] __attribute__((weak, visibility("hidden"))) void __throw_bad_array_new_length();
void __throw_bad_array_new_length() { throw bad_array_new_length(); }
}  // namespace std

// Compiles string streams into the library, because some of their symbols are exported only from GLIBCXX_3.4.26 and
// 3.4.29 on.
#include <istream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1

// Uses the old versions of these functions. GLIBC_2.29 only removed their old error handling.
#if defined(__x86_64__)
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif
