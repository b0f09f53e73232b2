// Peers of transport tcp in processes of their own, killed, stopped and continued.
#include "unit/transport/tcp_fixture.hpp"

#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fcntl.h>
#include <thread>

namespace luna::test {
namespace {

constexpr std::size_t kMessageBytes = 100000;

/// A process with one endpoint, which sends back what it receives. Forked while this process has
/// one thread.
class EchoProcess {
 public:
  EchoProcess(const luna_transport_if& table, const SettingValues& settings) {
    int from_child[2] = {};
    int to_child[2] = {};
    EXPECT_EQ(::pipe2(from_child, O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(to_child, O_CLOEXEC), 0);
    id_ = ::fork();
    if (id_ == 0) {
      echo(table, settings, to_child[0], from_child[1]);
      ::_exit(0);
    }
    ::close(from_child[1]);
    ::close(to_child[0]);
    address_ = read_blob(from_child[0]);
    ::close(from_child[0]);
    to_child_ = to_child[1];
  }
  ~EchoProcess() {
    signal(SIGKILL);
    ::close(to_child_);
  }
  EchoProcess(const EchoProcess&) = delete;
  EchoProcess& operator=(const EchoProcess&) = delete;

  [[nodiscard]] const Blob& address() const { return address_; }
  /// Tells it where rank 0 is.
  void meet(const Blob& other) const { write_blob(to_child_, other); }
  void signal(int number) {
    if (id_ <= 0) return;
    ::kill(id_, number);
    if (number != SIGKILL) return;
    ::waitpid(id_, nullptr, 0);
    id_ = 0;
  }

 private:
  static void write_blob(int to, const Blob& blob) {
    const auto n = static_cast<std::uint8_t>(blob.size());
    EXPECT_EQ(::write(to, &n, 1), 1);
    EXPECT_EQ(::write(to, blob.data(), n), n);
  }
  static Blob read_blob(int from) {
    std::uint8_t n = 0;
    EXPECT_EQ(::read(from, &n, 1), 1);
    Blob blob(n);
    EXPECT_EQ(::read(from, blob.data(), n), n);
    return blob;
  }
  static void echo(const luna_transport_if& table,
                   const SettingValues& settings,
                   int from_parent,
                   int to_parent) {
    const FakeHost host;
    Endpoint endpoint(table, host, settings);
    const Blob own = endpoint.address();
    write_blob(to_parent, own);
    const Blob other = read_blob(from_parent);
    const auto opened = endpoint.open(1, 2, 1 << 20, "pair", {other, own});
    if (!opened) return;
    std::vector<std::uint8_t> bytes(kMessageBytes);
    const luna_comm* const comm = *opened;
    while (comm->recv(comm->self, 0, 7, bytes.data(), bytes.size()) == LUNA_OK &&
           comm->send(comm->self, 0, 8, bytes.data(), bytes.size()) == LUNA_OK) {}
  }

  pid_t id_ = 0;
  int to_child_ = -1;
  Blob address_;
};

class TcpProcess : public Tcp {
 protected:
  void start(const SettingValues& more) {
    const SettingValues settings =
        quick() + more +
        SettingValues{{"token_file", folder_.write("token", "a token for two processes")}};
    child_ = std::make_unique<EchoProcess>(*table_, settings);
    here_ = make(settings);
    std::uint32_t peer = 0;
    ASSERT_EQ(here_->connect_at_last(child_->address(), peer), LUNA_OK) << here_->reason();
    child_->meet(here_->address());
    auto opened = here_->open(0, 2, 1 << 20, "pair", {here_->address(), child_->address()});
    ASSERT_TRUE(opened);
    comm_ = *opened;
    ASSERT_EQ(send(0), LUNA_OK);
    expect_echo(0);
  }
  void TearDown() override {
    if (comm_ != nullptr) here_->close(comm_);
  }
  luna_status send(std::uint32_t i) {
    const auto bytes = pattern(kMessageBytes, i);
    return comm_->send(comm_->self, 1, 7, bytes.data(), bytes.size());
  }
  luna_status receive(std::vector<std::uint8_t>& bytes) {
    bytes.resize(kMessageBytes);
    return comm_->recv(comm_->self, 1, 8, bytes.data(), bytes.size());
  }
  void expect_echo(std::uint32_t i) {
    std::vector<std::uint8_t> got;
    ASSERT_EQ(receive(got), LUNA_OK) << i;
    ASSERT_EQ(got, pattern(kMessageBytes, i)) << "message " << i;
  }

  std::unique_ptr<EchoProcess> child_;
  std::unique_ptr<Endpoint> here_;
  const luna_comm* comm_ = nullptr;
};

TEST_F(TcpProcess, PeerThatIsKilledEndsTheWaitingForIt) {
  start({});
  child_->signal(SIGKILL);
  std::vector<std::uint8_t> got;
  EXPECT_EQ(receive(got), LUNA_UNAVAILABLE);
  EXPECT_EQ(send(1), LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(here_->connect(child_->address(), peer), LUNA_UNAVAILABLE);
}

TEST_F(TcpProcess, PeerThatIsStoppedIsGivenUpAfterItsTimeout) {
  start({{"peer_timeout_ms", std::int64_t{500}}});
  child_->signal(SIGSTOP);
  std::vector<std::uint8_t> got;
  EXPECT_EQ(receive(got), LUNA_UNAVAILABLE);
  std::uint32_t peer = 0;
  EXPECT_EQ(here_->connect(child_->address(), peer), LUNA_UNAVAILABLE);
  EXPECT_NE(here_->reason().find("silent"), std::string::npos) << here_->reason();
}

TEST_F(TcpProcess, PeerThatIsStoppedAndContinuedHasLostNothing) {
  start({});
  child_->signal(SIGSTOP);
  std::thread sender([&] {
    for (std::uint32_t i = 1; i <= 20; ++i)
      EXPECT_EQ(send(i), LUNA_OK);
  });
  while (here_->estimate_ns(0, 0) < 1'000'000'000)  // its silence is seen, and more than once
    std::this_thread::yield();
  child_->signal(SIGCONT);
  for (std::uint32_t i = 1; i <= 20; ++i)
    expect_echo(i);
  sender.join();
}

}  // namespace
}  // namespace luna::test
