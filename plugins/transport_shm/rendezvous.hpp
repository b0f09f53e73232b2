// Where ranks of several processes find their group.
#pragma once

#include "descriptor.hpp"
#include "group.hpp"

#include <string>
#include <string_view>

namespace luna::shm {

/// A folder of small files, one a group that still waits for ranks: it says where the group's
/// segment is. The folder belongs to this user alone. A group whose ranks are all there has no file
/// any more; a file that a killed process left is taken over by the next rank of its group, and
/// removed by whoever opens the folder. [main]
class Rendezvous {
 public:
  /// path   made if it is not there; empty: a folder of the user's in shared memory
  /// Errors unavailable: others could write there; io
  static Result<Rendezvous> open(const std::string& path);

  /// Makes the group or finds it, and joins it.
  /// name   of the group, with the run that it belongs to
  /// Errors as Group::attach() and Group::join(); timeout: another rank stopped while joining
  Result<Group> join(const std::string& name,
                     const GroupTerms& terms,
                     const CommunicatorOptions& options) const;
  /// The group waits for no more ranks.
  void forget(const std::string& name, const Epoch& epoch) const;

  static constexpr std::size_t kNameBytesMax = 400;

 private:
  struct Record;
  struct LockedFile {
    Descriptor file;
    std::string name;
  };

  explicit Rendezvous(Descriptor folder, std::string path)
      : folder_(std::move(folder)), path_(std::move(path)) {}

  Result<LockedFile> lock(const std::string& file_name, int open_flags) const;
  void remove_orphans() const;
  void remove_if_orphan(const std::string& file_name) const;

  Descriptor folder_;
  std::string path_;
};

}  // namespace luna::shm
