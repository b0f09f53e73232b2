// A file descriptor that closes itself.
#pragma once

#include <unistd.h>
#include <utility>

namespace luna::shm {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (is_open()) ::close(number_);
  }

  [[nodiscard]] bool is_open() const { return number_ >= 0; }
  /// Negative while it is not open, as the system calls have it.
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_ = -1;
};

}  // namespace luna::shm
