/* The parts of the Crazyflie's firmware that an exported controller uses. */
#pragma once
#include <stdint.h>
typedef struct { float x, y, z; } Axis3f;
typedef struct { float roll, pitch, yaw; } attitude_t;
typedef struct { Axis3f acc, gyro; } sensorData_t;
typedef struct { attitude_t attitude; Axis3f position, velocity; } state_t;
typedef struct { attitude_t attitude, attitudeRate; float thrust; } setpoint_t;
typedef struct { float thrustSi; float torque[3]; } control_t;
typedef uint32_t stabilizerStep_t;
