#pragma once
#define M2T(ms) (ms)
