#pragma once
// The stub makes the class reachable for the test's own program.
#define PLUGINLIB_EXPORT_CLASS(derived, base) \
  std::unique_ptr<base> make_controller();    \
  std::unique_ptr<base> make_controller() { return std::make_unique<derived>(); }
