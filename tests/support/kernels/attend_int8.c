#define EW_KV 2
#define SUFFIX int8
#include "attend.inc"
