// The parts of PX4 that an exported module uses.
#pragma once
#include <cstdint>
#include <cstdio>
#define MODULE_NAME "stub"
#define __EXPORT
enum { PX4_OK = 0, PX4_ERROR = -1 };
static constexpr int task_id_is_work_queue = -2;
template<class T>
struct Holder {
	T *held = nullptr;
	void store(T *given) { held = given; }
};
template<class T>
class ModuleBase
{
public:
	virtual ~ModuleBase() = default;
	virtual int print_status() { return 0; }
	static int main(int argc, char *argv[]) { return argc > 1 ? T::task_spawn(argc, argv) : T::custom_command(argc, argv); }
	bool should_exit() const { return false; }
	void exit_and_cleanup() {}
	static Holder<T> _object;
	static int _task_id;
};
template<class T> Holder<T> ModuleBase<T>::_object;
template<class T> int ModuleBase<T>::_task_id = -1;
inline void PRINT_MODULE_USAGE_NAME(const char *, const char *) {}
inline void PRINT_MODULE_USAGE_COMMAND(const char *) {}
inline void PRINT_MODULE_USAGE_DEFAULT_COMMANDS() {}
