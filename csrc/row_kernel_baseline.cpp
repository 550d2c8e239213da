#define KULLBACK_ISA baseline
#include "row_kernel.h"
