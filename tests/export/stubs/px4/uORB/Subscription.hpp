#pragma once
struct stub_topic { void *last; };
#define ORB_ID(topic) (&stub_##topic)
namespace uORB
{
class Subscription
{
public:
	explicit Subscription(stub_topic *topic) : _topic(topic) {}
	bool updated() const { return _topic->last != nullptr; }
	template<class T> bool copy(T *to) { return update(to); }
	template<class T> bool update(T *to)
	{
		if (_topic->last) { *to = *static_cast<T *>(_topic->last); }
		return _topic->last != nullptr;
	}

private:
	stub_topic *_topic;
};
}
