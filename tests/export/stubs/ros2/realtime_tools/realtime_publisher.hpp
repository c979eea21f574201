#pragma once
#include <controller_interface/controller_interface.hpp>
namespace realtime_tools
{
template<class Message>
class RealtimePublisher
{
public:
  explicit RealtimePublisher(typename rclcpp::Publisher<Message>::SharedPtr publisher) : publisher_(publisher) {}
  Message msg_;
  bool trylock() { return true; }
  void unlockAndPublish() { publisher_->last = msg_; }

private:
  typename rclcpp::Publisher<Message>::SharedPtr publisher_;
};
}  // namespace realtime_tools
