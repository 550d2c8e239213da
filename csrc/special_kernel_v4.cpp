#define KULLBACK_ISA v4
#include "special_kernel.h"
