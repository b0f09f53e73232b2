#include "unit/transport/peer_process.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>

namespace luna::test {

PeerProcess::PeerProcess(const std::vector<std::string>& arguments) {
  std::array<int, 2> down{}, up{};
  EXPECT_EQ(::pipe2(down.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::pipe2(up.data(), O_CLOEXEC), 0);
  std::vector<std::string> all = {"test_transport", "--peer"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& argument : all)
    argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(down[0], STDIN_FILENO);
    ::dup2(up[1], STDOUT_FILENO);
    ::execv("/proc/self/exe", argv.data());
    ::_exit(127);
  }
  ::close(down[0]);
  ::close(up[1]);
  to_peer_ = down[1];
  from_peer_ = up[0];
}

PeerProcess::~PeerProcess() {
  kill();
  ::close(to_peer_);
  ::close(from_peer_);
}

std::string PeerProcess::read_line() {
  std::string line;
  for (char next = 0; ::read(from_peer_, &next, 1) == 1 && next != '\n';)
    line.push_back(next);
  return line;
}

void PeerProcess::write_line(const std::string& line) {
  const std::string text = line + "\n";
  EXPECT_EQ(::write(to_peer_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

void PeerProcess::kill() {
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  wait();
}

int PeerProcess::wait() {
  int status = 0;
  EXPECT_EQ(::waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace luna::test

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "--peer")
    return luna::test::play_role({arguments.begin() + 1, arguments.end()});
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
