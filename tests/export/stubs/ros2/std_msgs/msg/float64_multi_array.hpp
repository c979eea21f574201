#pragma once
#include <vector>
namespace std_msgs { namespace msg { struct Float64MultiArray { std::vector<double> data; }; } }
