#define EW_KV 0
#define SUFFIX f32
#include "attend.inc"
