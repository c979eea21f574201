#pragma once
#include "param.h"
#define LOG_GROUP_START(group) const struct stub_entry stub_logs_##group[] = {
#define LOG_ADD(kind, name, place) {kind, #name, place},
#define LOG_GROUP_STOP(group) {0, 0, 0}};
