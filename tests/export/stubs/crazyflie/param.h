#pragma once
struct stub_entry { int kind; const char *name; void *place; };
enum { PARAM_UINT8, LOG_FLOAT, LOG_UINT8 };
#define PARAM_GROUP_START(group) const struct stub_entry stub_params_##group[] = {
#define PARAM_ADD(kind, name, place) {kind, #name, place},
#define PARAM_GROUP_STOP(group) {0, 0, 0}};
