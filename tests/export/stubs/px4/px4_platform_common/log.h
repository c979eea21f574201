#pragma once
#include <cstdio>
#define PX4_INFO(...) std::printf(__VA_ARGS__)
#define PX4_WARN(...) std::printf(__VA_ARGS__)
#define PX4_ERR(...) std::printf(__VA_ARGS__)
