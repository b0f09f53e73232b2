#include "core/check/two_sides.hpp"

#include "core/base/assert.hpp"

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace luna::check {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kChannelWaitMax(30'000);
constexpr std::size_t kMessageBytesMax = 8192;  // of the channel: a finding, an address

// Kinds of messages of the channel, beside those of the cases themselves.
constexpr std::string_view kAddress = "address ";
constexpr std::string_view kFound = "found ";
constexpr std::string_view kMade = "made";
constexpr std::string_view kEnded = "ended";

/// What core sets where processes of one cluster meet; a folder's worth of it lives here.
class Cluster {
 public:
  Cluster() {
    std::array<char, 32> name{"/tmp/luna-check-XXXXXX"};
    const int fd = ::mkstemp(name.data());
    LUNA_VERIFY(fd >= 0);
    file_ = name.data();
    const std::string token = "a token of the validator, " + std::to_string(::getpid());
    LUNA_VERIFY(::write(fd, token.data(), token.size()) == static_cast<ssize_t>(token.size()));
    ::close(fd);
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  ~Cluster() { ::unlink(file_.c_str()); }

  /// The input with the settings that the plugin declares and the input leaves open.
  [[nodiscard]] CaseInput input_for(const CaseInput& given, const luna_if& head) const {
    CaseInput input = given;
    const std::array<std::pair<std::string, std::string>, 3> cluster = {
        {{"run", "check-" + std::to_string(::getpid())},
         {"token_file", file_},
         {"host", "127.0.0.1"}}};
    for (const auto& setting : cluster) {
      const auto is_it = [&](const auto& one) { return one.first == setting.first; };
      if (std::ranges::any_of(input.settings, is_it)) continue;
      for (const luna_param* param : plugin::params_of(head))
        if (setting.first == param->key) input.settings.push_back(setting);
    }
    return input;
  }

 private:
  std::string file_;
};

/// Passes findings, phases and the like on to another run, whose input it does not have.
CaseRun with_input(CaseRun& run, CaseInput input) {
  return {std::move(input),
          [&run](CaseRun::Word word, std::string_view first, std::string_view second) {
            switch (word) {
              case CaseRun::Word::phase:
                return run.phase(first);
              case CaseRun::Word::finding:
                return run.fail(first, second);
              case CaseRun::Word::skip:
                return run.skip(first);
              case CaseRun::Word::figure:
                return run.figure(first, second);
            }
          }};
}

/// A run whose findings go over the channel.
CaseRun run_over(SideChannel& channel, CaseInput input) {
  return {std::move(input),
          [&channel](CaseRun::Word word, std::string_view first, std::string_view second) {
            if (word == CaseRun::Word::finding)
              channel.send(std::string(kFound) + std::string(first) + " " + std::string(second));
            if (word == CaseRun::Word::skip)
              channel.send(std::string(kFound) + "skip " + std::string(first));
          }};
}

/// Tells a run what came over the channel as a finding. False: it was none.
bool take_finding(CaseRun& run, const std::string& message) {
  if (!message.starts_with(kFound)) return false;
  const std::string rest = message.substr(kFound.size());
  const std::size_t blank = rest.find(' ');
  const std::string rule = rest.substr(0, blank);
  const std::string text = rest.substr(blank + 1);
  if (rule == "skip")
    run.skip(text);
  else
    run.fail(rule, "on the other side: " + text);
  return true;
}

/// Both sides exchange addresses and connect. False: the run was told why.
bool meet(CaseRun& run, End& end, SideChannel& channel) {
  const std::vector<std::uint8_t> own = end.address();
  channel.send(std::string(kAddress) + std::string(own.begin(), own.end()));
  const std::optional<std::string> said = channel.receive(kChannelWaitMax);
  if (!said || !said->starts_with(kAddress)) {
    if (said) take_finding(run, *said);
    return false;
  }
  const std::vector<std::uint8_t> other(said->begin() + kAddress.size(), said->end());
  luna_err err = make_err();
  luna_status status = LUNA_AGAIN;
  const bool has_answer = end.poll_until([&] {
    status = end.connect(other, err);
    return status != LUNA_AGAIN;
  });
  if (!has_answer || status != LUNA_OK)
    run.fail("X1",
             "two sides do not meet: " +
                 (has_answer ? std::string(text_of(err)) : std::string("still AGAIN after 10 s")));
  channel.send(run.has_failed() ? kEnded : kMade);
  const std::optional<std::string> answer = receive_polling(end, channel);
  return !run.has_failed() && answer == kMade;
}

void live_on_side(CaseRun& run,
                  Subject& subject,
                  SideChannel& channel,
                  bool is_process,
                  const std::function<void(Side&)>& body) {
  const std::unique_ptr<End> end = End::make(run, subject);
  if (end == nullptr) return channel.send(kEnded);
  if (!meet(run, *end, channel)) return;
  Side side{run, *end, channel, is_process};
  body(side);
}

/// Until the other side has ended, its findings.
void hear_out(CaseRun& run, SideChannel& channel) {
  while (const auto said = channel.receive(kChannelWaitMax))
    if (*said == kEnded)
      return;
    else
      take_finding(run, *said);
}

struct Ends {
  int here = -1;
  int there = -1;
};

Ends make_channel() {
  std::array<int, 2> fds{};
  LUNA_VERIFY(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds.data()) == 0);
  return {fds[0], fds[1]};
}

/// Before anything of the plugin runs here, so that the other process is as young as this one.
pid_t start_process(const Ends& ends,
                    const CaseInput& input,
                    const std::function<void(Side&)>& body) {
  const pid_t child = ::fork();
  LUNA_VERIFY(child >= 0);
  if (child != 0) {
    ::close(ends.there);
    return child;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::close(ends.here);
  {
    SideChannel channel(ends.there);
    CaseRun run = run_over(channel, input);
    if (const auto subject = Subject::load(run)) live_on_side(run, *subject, channel, true, body);
    channel.send(kEnded);
  }
  ::_exit(0);
}

void tell_end(CaseRun& run, pid_t child) {
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (WIFSIGNALED(status))
    run.fail("U3",
             std::string("the other process was ended by signal ") +
                 std::to_string(WTERMSIG(status)) + " (" + ::strsignal(WTERMSIG(status)) + ")");
  else if (WEXITSTATUS(status) != 0)
    run.fail("U3", "the other process ended with status " + std::to_string(WEXITSTATUS(status)));
}

/// What the transport says of its reach; nullopt: the run was told why it cannot be asked.
struct Reach {
  bool has_processes = false;
  CaseInput input;
};

std::optional<Reach> ask_reach(CaseRun& run, const Cluster& cluster, Subject& subject) {
  Reach reach;
  reach.input = cluster.input_for(run.input(), subject.head(LUNA_KIND_TRANSPORT));
  const std::unique_ptr<End> end = End::make(run, subject);
  if (end == nullptr) return std::nullopt;
  const luna_transport_caps caps = end->caps();
  reach.has_processes =
      LUNA_HAS(&caps, luna_transport_caps, reach) && caps.reach >= LUNA_REACH_HOST;
  return reach;
}

/// ask_reach() in a process of its own, so that nothing of the plugin has run in this one.
std::optional<Reach> reach_of(CaseRun& run, const Cluster& cluster) {
  const Ends ends = make_channel();
  const pid_t child = ::fork();
  LUNA_VERIFY(child >= 0);
  if (child == 0) {
    {
      SideChannel channel(ends.there);
      CaseRun own = run_over(channel, run.input());
      const auto subject = Subject::load(own);
      const auto reach = subject == nullptr ? std::nullopt : ask_reach(own, cluster, *subject);
      if (reach) {
        std::string settings = reach->has_processes ? "2" : "1";
        for (const auto& [key, value] : reach->input.settings)
          settings += "\n" + key + "=" + value;
        channel.send(settings);
      }
      channel.send(kEnded);
    }
    ::_exit(0);
  }
  ::close(ends.there);
  SideChannel channel(ends.here);
  std::optional<Reach> reach;
  while (const auto said = channel.receive(kChannelWaitMax)) {
    if (*said == kEnded) break;
    if (take_finding(run, *said)) continue;
    reach.emplace(Reach{said->front() == '2', run.input()});
    reach->input.settings.clear();
    for (std::size_t at = said->find('\n'); at != std::string::npos;) {
      const std::size_t end = said->find('\n', at + 1);
      const std::string line = said->substr(at + 1, end == std::string::npos ? end : end - at - 1);
      const std::size_t equals = line.find('=');
      reach->input.settings.emplace_back(line.substr(0, equals), line.substr(equals + 1));
      at = end;
    }
  }
  tell_end(run, child);
  return run.has_failed() ? std::nullopt : reach;
}

void run_threads(CaseRun& run,
                 const CaseInput& input,
                 const std::function<void(Side&)>& here,
                 const std::function<void(Side&)>& there) {
  const Ends ends = make_channel();
  CaseRun own = with_input(run, input);
  const auto subject = Subject::load(own);
  SideChannel channel(ends.here);
  std::thread other([&] {
    SideChannel its_channel(ends.there);
    CaseRun its_run = run_over(its_channel, input);
    if (subject != nullptr) live_on_side(its_run, *subject, its_channel, false, there);
    its_channel.send(kEnded);
  });
  if (subject != nullptr) live_on_side(own, *subject, channel, false, here);
  hear_out(run, channel);
  other.join();
}

}  // namespace

SideChannel::~SideChannel() {
  ::close(fd_);
}

void SideChannel::send(std::string_view message) {
  const std::string_view whole = message.substr(0, kMessageBytesMax);
  while (::send(fd_, whole.data(), whole.size(), MSG_NOSIGNAL) < 0 && errno == EINTR) {}
}

std::optional<std::string> SideChannel::receive(milliseconds limit) {
  pollfd asked{fd_, POLLIN, 0};
  int ready = 0;
  do
    ready = ::poll(&asked, 1, static_cast<int>(limit.count()));
  while (ready < 0 && errno == EINTR);
  if (ready <= 0) return std::nullopt;
  std::string message(kMessageBytesMax, '\0');
  const ssize_t n = ::recv(fd_, message.data(), message.size(), 0);
  if (n <= 0) return std::nullopt;
  message.resize(static_cast<std::size_t>(n));
  return message;
}

std::optional<std::string> receive_polling(End& end, SideChannel& channel) {
  std::optional<std::string> message;
  end.poll_until([&] {
    message = channel.receive(milliseconds(1));
    return message.has_value();
  });
  return message;
}

void run_two_sides(CaseRun& run,
                   const std::function<void(Side&)>& here,
                   const std::function<void(Side&)>& there) {
  const Cluster cluster;
  const std::optional<Reach> reach = reach_of(run, cluster);
  if (!reach) return;
  if (!reach->has_processes) return run_threads(run, reach->input, here, there);
  const Ends ends = make_channel();
  const pid_t child = start_process(ends, reach->input, there);
  {
    SideChannel channel(ends.here);
    CaseRun own = with_input(run, reach->input);
    if (const auto subject = Subject::load(own)) live_on_side(own, *subject, channel, true, here);
    hear_out(run, channel);
  }
  tell_end(run, child);
}

void run_beside_a_victim(CaseRun& run,
                         const std::function<void(Side&, const std::function<void()>&)>& here,
                         const std::function<void(Side&)>& there) {
  const Cluster cluster;
  const std::optional<Reach> reach = reach_of(run, cluster);
  if (!reach) return;
  if (!reach->has_processes) return run.figure("reach", "this process: there is nobody to kill");
  const Ends ends = make_channel();
  const pid_t child = start_process(ends, reach->input, there);
  bool is_gone = false;
  const auto kill = [&] {
    ::kill(child, SIGKILL);
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    is_gone = true;
  };
  SideChannel channel(ends.here);
  CaseRun own = with_input(run, reach->input);
  if (const auto subject = Subject::load(own))
    live_on_side(own, *subject, channel, true, [&](Side& side) { here(side, kill); });
  if (!is_gone) kill();
}

std::uint64_t resident_bytes() {
  std::FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr) return 0;
  unsigned long long n_pages = 0;
  unsigned long long n_resident = 0;
  const int n_read = std::fscanf(file, "%llu %llu", &n_pages, &n_resident);
  std::fclose(file);
  return n_read == 2 ? n_resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE)) : 0;
}

}  // namespace luna::check
