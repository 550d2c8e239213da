#define KULLBACK_ISA v3
#include "term_kernel.h"
