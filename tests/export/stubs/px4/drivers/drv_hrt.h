#pragma once
#include <stdint.h>
typedef uint64_t hrt_abstime;
extern hrt_abstime stub_now;
static inline hrt_abstime hrt_absolute_time() { return stub_now; }
