#define KULLBACK_ISA v3
#include "special_kernel.h"
