#define KULLBACK_ISA baseline
#include "special_kernel.h"
