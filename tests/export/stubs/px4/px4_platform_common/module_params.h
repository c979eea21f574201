#pragma once
namespace px4 { enum class params { MOTOR_LEARN_ON, MOTOR_TUNE_ON, MOTOR_SAFE_ON }; }
class ModuleParams
{
public:
	explicit ModuleParams(ModuleParams *) {}
	virtual ~ModuleParams() = default;
	virtual void updateParams() {}
};
template<px4::params name>
struct ParamBool {
	bool get() const { return name != px4::params::MOTOR_SAFE_ON; }
};
// PX4's macro takes pairs "(type) name": drop the parentheses around the type.
#define STUB_TYPE(...) __VA_ARGS__
#define STUB_MEMBER(pair) STUB_TYPE pair;
#define DEFINE_PARAMETERS(a, b, c) STUB_MEMBER(a) STUB_MEMBER(b) STUB_MEMBER(c)
