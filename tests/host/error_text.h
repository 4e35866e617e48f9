// The first error of a launch, as text for Python.
#pragma once
#include <cstdarg>
#include <cstddef>
#include <cstdio>

namespace host {

class ErrorText {
 public:
  ErrorText(char* text, size_t size) : text_(text), size_(size) {}

  [[gnu::format(printf, 2, 3)]] void set(const char* format, ...) {
    if (is_set_) return;
    is_set_ = true;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text_, size_, format, arguments);
    va_end(arguments);
  }

  bool is_set() const { return is_set_; }

 private:
  char* text_;
  size_t size_;
  bool is_set_ = false;
};

}  // namespace host
