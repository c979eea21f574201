#pragma once
#include <stdint.h>
#include <uORB/Subscription.hpp>
struct vehicle_rates_setpoint_s { uint64_t timestamp; float roll; float pitch; float yaw; };
extern stub_topic stub_vehicle_rates_setpoint;
