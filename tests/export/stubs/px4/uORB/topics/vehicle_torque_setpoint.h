#pragma once
#include <stdint.h>
#include <uORB/Subscription.hpp>
struct vehicle_torque_setpoint_s { uint64_t timestamp; float xyz[3]; };
extern stub_topic stub_vehicle_torque_setpoint;
