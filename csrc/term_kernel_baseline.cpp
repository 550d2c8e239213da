#define KULLBACK_ISA baseline
#include "term_kernel.h"
