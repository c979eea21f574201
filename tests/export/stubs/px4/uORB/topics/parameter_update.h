#pragma once
#include <stdint.h>
#include <uORB/Subscription.hpp>
struct parameter_update_s { uint64_t timestamp; };
extern stub_topic stub_parameter_update;
