#define KULLBACK_ISA v3
#include "row_kernel.h"
