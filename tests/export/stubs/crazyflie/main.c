/* Runs an exported controller with the stubs. */
#include "app.h"
#include "controller.h"
#include "param.h"
#include "task.h"
#include <math.h>

extern const struct stub_entry stub_params_motor[];
void vTaskDelay(unsigned ticks) { (void)ticks; }

int main(void)
{
    control_t control = {0};
    setpoint_t setpoint = {0};
    sensorData_t sensors = {0};
    state_t state = {0};
    controllerOutOfTreeInit();
    if (!controllerOutOfTreeTest()) return 1;
    setpoint.attitudeRate.roll = 100.0f;
    controllerOutOfTree(&control, &setpoint, &sensors, &state, 0);
    if (!(control.torque[0] > 5.0f)) return 2;
    *(unsigned char *)stub_params_motor[2].place = 1; /* safe */
    controllerOutOfTree(&control, &setpoint, &sensors, &state, 1);
    return control.torque[0] == 0.0f ? 0 : 3;
}
