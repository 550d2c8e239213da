// Included first in every file of a wheel for PyPI (KULLBACK_MANYLINUX in CMakeLists.txt), where the compiler is newer
// than the glibc and libstdc++ that the wheel has to run with: names what these already have.
#pragma once

// std::shared_ptr asks glibc 2.32 whether there is one thread only. Here there never is.
#define __libc_single_threaded kullback_single_threaded
extern "C" {
__attribute__((weak, visibility("hidden"))) char kullback_single_threaded;
}

// String streams are compiled in: GLIBCXX_3.4.26 and 3.4.29 export more of them.
#include <istream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 0
#include <sstream>
#undef _GLIBCXX_EXTERN_TEMPLATE
#define _GLIBCXX_EXTERN_TEMPLATE 1

// The same functions as those of GLIBC_2.29, which leave out an old treatment of errno.
#if defined(__x86_64__)
__asm__(".symver log, log@GLIBC_2.2.5");
__asm__(".symver exp, exp@GLIBC_2.2.5");
__asm__(".symver pow, pow@GLIBC_2.2.5");
#endif
