#define EW_KV 1
#define SUFFIX bf16
#include "attend.inc"
