#pragma once
#include <uORB/Subscription.hpp>
namespace uORB
{
template<class T>
class Publication
{
public:
	explicit Publication(stub_topic *topic) : _topic(topic) {}
	bool publish(const T &data)
	{
		_last = data;
		_topic->last = &_last;
		return true;
	}

private:
	stub_topic *_topic;
	T _last{};
};
}
