#pragma once
namespace realtime_tools
{
template<class Value>
class RealtimeBuffer
{
public:
  explicit RealtimeBuffer(const Value & value) : value_(value) {}
  void writeFromNonRT(const Value & value) { value_ = value; }
  Value * readFromRT() { return &value_; }

private:
  Value value_;
};
}  // namespace realtime_tools
