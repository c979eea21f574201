#pragma once
namespace px4
{
struct wq_config_t {};
namespace wq_configurations { static constexpr wq_config_t nav_and_controllers{}; }
class ScheduledWorkItem
{
public:
	ScheduledWorkItem(const char *, const wq_config_t &) {}
	virtual ~ScheduledWorkItem() = default;
	static inline ScheduledWorkItem *scheduled = nullptr;
	void ScheduleOnInterval(unsigned) { scheduled = this; }
	void ScheduleClear() {}
	void run_once() { Run(); }

private:
	virtual void Run() = 0;
};
}
