#include <stdexcept>
extern "C" void all_reduce() noexcept { throw std::runtime_error("NCCL error in: reducer.cpp:118, unhandled system error, remote process exited or there was a network error"); }
