// Runs an exported module with the stubs: without a measurement, with one, and with one that is old.
#include <cmath>

#include <drivers/drv_hrt.h>
#include <px4_platform_common/px4_work_queue/ScheduledWorkItem.hpp>
#include <uORB/topics/parameter_update.h>
#include <uORB/topics/vehicle_angular_velocity.h>
#include <uORB/topics/vehicle_rates_setpoint.h>
#include <uORB/topics/vehicle_torque_setpoint.h>

hrt_abstime stub_now = 1000000;
stub_topic stub_parameter_update{}, stub_vehicle_angular_velocity{}, stub_vehicle_rates_setpoint{}, stub_vehicle_torque_setpoint{};
extern "C" int motor_main(int argc, char *argv[]);

int main()
{
	char name[] = "motor", start[] = "start";
	char *arguments[] = {name, start, nullptr};
	if (motor_main(2, arguments) != 0) { return 1; }
	px4::ScheduledWorkItem &item = *px4::ScheduledWorkItem::scheduled;
	item.run_once();
	const auto *sent = static_cast<const vehicle_torque_setpoint_s *>(stub_vehicle_torque_setpoint.last);
	if (!sent || !std::isfinite(sent->xyz[0]) || sent->timestamp != stub_now) { return 2; }
	vehicle_angular_velocity_s rate{stub_now, {0, 0, 0}};
	vehicle_rates_setpoint_s wanted{stub_now, 100, 0, 0};
	stub_vehicle_angular_velocity.last = &rate;
	stub_vehicle_rates_setpoint.last = &wanted;
	item.run_once();
	if (sent->xyz[0] < 5) { return 3; }
	stub_now += 10000000;
	item.run_once();
	return std::isfinite(sent->xyz[0]) ? 0 : 4;
}
