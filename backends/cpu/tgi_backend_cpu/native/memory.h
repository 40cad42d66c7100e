// Memory in huge pages: a panel and the rows that it is multiplied with are hundreds of small ones, more than a core remembers.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tgi {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kLine = 64;  // bytes

// How many bytes ahead of a product a weight is fetched, where it comes from memory: 8 rows gain a quarter by it on Zen 5. Not more: what
// follows a panel is likely to be another thread's.
constexpr size_t kAhead = 8192;

inline size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Zeroed, and in huge pages where the system gives them; null when there is none.
inline void* map_huge(size_t bytes) {
  const size_t whole = rounded_up(bytes, kHugePage);
  char* raw = (char*)mmap(nullptr, whole + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  char* aligned = (char*)rounded_up((uintptr_t)raw, kHugePage);
  if (aligned != raw) munmap(raw, aligned - raw);
  munmap(aligned + whole, raw + kHugePage - aligned);
  madvise(aligned, whole, MADV_HUGEPAGE);
  return aligned;
}

inline void unmap_huge(void* memory, size_t bytes) { munmap(memory, rounded_up(bytes, kHugePage)); }

// Memory that grows, on a line of its own; what was in it is lost when it does. Each begins at another place in a page, since addresses
// that differ by whole pages share places in the caches.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { give_back(); }

  T* at_least(size_t size) {
    const size_t wanted = size * sizeof(T) + kStagger;
    if (wanted <= bytes_) return data();
    give_back();
    base_ = (char*)(is_huge(wanted) ? map_huge(wanted) : std::aligned_alloc(kLine, rounded_up(wanted, kLine)));
    if (!base_) throw std::bad_alloc();
    bytes_ = wanted;
    return data();
  }
  T* data() const { return (T*)(base_ + ((uintptr_t)this / sizeof(*this) * 7 * kLine) % kStagger); }

 private:
  static constexpr size_t kStagger = 4096;
  static bool is_huge(size_t bytes) { return bytes >= kHugePage / 32; }
  void give_back() {
    if (base_) is_huge(bytes_) ? unmap_huge(base_, bytes_) : std::free(base_);
    base_ = nullptr, bytes_ = 0;
  }

  char* base_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tgi
