// The other side of a transport in a process of its own: this test program, started anew with a
// role. It talks to the test by lines.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace luna::test {

/// A running peer. Ends with the object, at the latest.
class PeerProcess {
 public:
  /// arguments   role, and what it takes
  explicit PeerProcess(const std::vector<std::string>& arguments);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

  /// What the peer printed next, without its end; empty when it has ended.
  std::string read_line();
  void write_line(const std::string& line);
  /// SIGKILL, and waits for the end.
  void kill();
  /// Waits for its own end. Returns its exit status; -1: a signal ended it.
  int wait();

 private:
  pid_t pid_ = -1;
  int to_peer_ = -1;
  int from_peer_ = -1;
};

/// Plays the role, in the peer's process. Returns its exit status; 0: all was as it should be.
int play_role(const std::vector<std::string>& arguments);

}  // namespace luna::test
