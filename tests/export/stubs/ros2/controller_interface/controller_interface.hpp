// The parts of controller_interface and rclcpp that an exported controller uses, with the signatures of ROS 2 Humble.
#pragma once

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#define RCLCPP_ERROR(logger, ...) ((void)(logger), std::fprintf(stderr, __VA_ARGS__))

namespace rcl_interfaces { namespace msg { struct SetParametersResult { bool successful = false; }; } }

namespace rclcpp
{
struct Time {};
struct Duration {};
struct Logger {};
struct SystemDefaultsQoS {};
class Parameter
{
public:
  std::string name;
  bool truth = false;
  std::vector<std::string> texts;
  std::vector<double> numbers;
  const std::string & get_name() const { return name; }
  bool as_bool() const { return truth; }
  std::vector<std::string> as_string_array() const { return texts; }
  std::vector<double> as_double_array() const { return numbers; }
};
template<class Message>
struct Subscription
{
  using SharedPtr = std::shared_ptr<Subscription>;
  std::function<void(const std::shared_ptr<Message>)> call;
};
template<class Message>
struct Publisher
{
  using SharedPtr = std::shared_ptr<Publisher>;
  Message last;
};
}  // namespace rclcpp

namespace rclcpp_lifecycle
{
struct State {};
class LifecycleNode
{
public:
  struct OnSetParametersCallbackHandle
  {
    using SharedPtr = std::shared_ptr<OnSetParametersCallbackHandle>;
    std::function<rcl_interfaces::msg::SetParametersResult(const std::vector<rclcpp::Parameter> &)> call;
  };
  std::map<std::string, rclcpp::Parameter> parameters;
  std::shared_ptr<void> subscription, publisher;
  OnSetParametersCallbackHandle::SharedPtr changed;
  rclcpp::Logger get_logger() const { return {}; }
  rclcpp::Parameter get_parameter(const std::string & name) const { return parameters.at(name); }
  template<class Call>
  OnSetParametersCallbackHandle::SharedPtr add_on_set_parameters_callback(Call call)
  {
    changed = std::make_shared<OnSetParametersCallbackHandle>();
    changed->call = call;
    return changed;
  }
  template<class Message, class Call>
  typename rclcpp::Subscription<Message>::SharedPtr create_subscription(
    const std::string &, const rclcpp::SystemDefaultsQoS &, Call call)
  {
    auto made = std::make_shared<rclcpp::Subscription<Message>>();
    made->call = call;
    subscription = made;
    return made;
  }
  template<class Message>
  typename rclcpp::Publisher<Message>::SharedPtr create_publisher(const std::string &, const rclcpp::SystemDefaultsQoS &)
  {
    auto made = std::make_shared<rclcpp::Publisher<Message>>();
    publisher = made;
    return made;
  }
};
}  // namespace rclcpp_lifecycle

namespace hardware_interface
{
struct LoanedStateInterface
{
  double value = 0;
  double get_value() const { return value; }
};
struct LoanedCommandInterface
{
  double value = 0;
  void set_value(double given) { value = given; }
};
}  // namespace hardware_interface

namespace controller_interface
{
enum class CallbackReturn { SUCCESS, FAILURE, ERROR };
enum class return_type { OK, ERROR };
enum class interface_configuration_type { ALL, INDIVIDUAL, NONE };
struct InterfaceConfiguration
{
  interface_configuration_type type;
  std::vector<std::string> names;
};
class ControllerInterface
{
public:
  virtual ~ControllerInterface() = default;
  virtual CallbackReturn on_init() = 0;
  virtual InterfaceConfiguration state_interface_configuration() const = 0;
  virtual InterfaceConfiguration command_interface_configuration() const = 0;
  virtual CallbackReturn on_configure(const rclcpp_lifecycle::State &) = 0;
  virtual CallbackReturn on_activate(const rclcpp_lifecycle::State &) = 0;
  virtual CallbackReturn on_deactivate(const rclcpp_lifecycle::State &) = 0;
  virtual return_type update(const rclcpp::Time &, const rclcpp::Duration &) = 0;
  std::shared_ptr<rclcpp_lifecycle::LifecycleNode> get_node() const { return node_; }
  unsigned int get_update_rate() const { return rate_; }
  template<class Value>
  void auto_declare(const std::string & name, const Value &) { node_->parameters[name].name = name; }
  std::vector<hardware_interface::LoanedStateInterface> state_interfaces_;
  std::vector<hardware_interface::LoanedCommandInterface> command_interfaces_;
  std::shared_ptr<rclcpp_lifecycle::LifecycleNode> node_ = std::make_shared<rclcpp_lifecycle::LifecycleNode>();
  unsigned int rate_ = 0;
};
}  // namespace controller_interface
