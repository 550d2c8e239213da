#define KULLBACK_ISA v4
#include "row_kernel.h"
