// Runs an exported controller with the stubs: configured, activated, and one update without and with a reference.
#include <cassert>
#include <cmath>

#include <controller_interface/controller_interface.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>

std::unique_ptr<controller_interface::ControllerInterface> make_controller();

int main()
{
  using Numbers = std_msgs::msg::Float64MultiArray;
  using controller_interface::CallbackReturn;
  auto controller = make_controller();
  if (controller->on_init() != CallbackReturn::SUCCESS) return 1;
  auto & parameters = controller->node_->parameters;
  if (controller->on_configure({}) != CallbackReturn::ERROR) return 2;  // no interfaces are named
  parameters["state_interfaces"].texts = {"motor/velocity"};
  parameters["command_interfaces"].texts = {"motor/voltage"};
  parameters["safe_control"].numbers = {1.5};
  parameters["learning"].truth = parameters["tuning"].truth = true;
  controller->rate_ = 50;
  if (controller->on_configure({}) != CallbackReturn::ERROR) return 3;  // another rate
  controller->rate_ = 1000;
  if (controller->on_configure({}) != CallbackReturn::SUCCESS) return 4;
  if (controller->state_interface_configuration().names[0] != "motor/velocity") return 5;
  controller->state_interfaces_.resize(1);
  controller->command_interfaces_.resize(1);
  if (controller->on_activate({}) != CallbackReturn::SUCCESS) return 6;
  auto subscription = std::static_pointer_cast<rclcpp::Subscription<Numbers>>(controller->node_->subscription);
  auto publisher = std::static_pointer_cast<rclcpp::Publisher<Numbers>>(controller->node_->publisher);
  controller->update({}, {});
  if (!std::isfinite(controller->command_interfaces_[0].value)) return 7;
  if (publisher->last.data.back() == 0) return 8;  // without a reference, the step was refused
  auto wanted = std::make_shared<Numbers>();
  wanted->data = {100.0};
  subscription->call(wanted);
  controller->update({}, {});
  if (publisher->last.data.back() != 0 || controller->command_interfaces_[0].value < 5) return 9;
  rclcpp::Parameter safe;
  safe.name = "safe";
  safe.truth = true;
  controller->node_->changed->call({safe});
  controller->update({}, {});
  if (controller->command_interfaces_[0].value != 1.5) return 10;
  return 0;
}
