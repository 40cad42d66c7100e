// Memory for weights and caches in huge pages, and line-aligned buffers for activations.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace tgi {

constexpr size_t kHugePage = 2u << 20;
constexpr size_t kLine = 64;  // bytes

inline size_t rounded_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

// Zeroed, in huge pages if the system has them; null if there is no memory.
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

// A line-aligned buffer that grows; growing discards its contents.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* at_least(size_t size) {
    if (size <= size_) return data_;
    std::free(data_);
    data_ = (T*)std::aligned_alloc(kLine, rounded_up(size * sizeof(T), kLine));
    size_ = data_ ? size : 0;
    if (!data_) throw std::bad_alloc();
    return data_;
  }
  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace tgi
