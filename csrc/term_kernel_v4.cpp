#define KULLBACK_ISA v4
#include "term_kernel.h"
