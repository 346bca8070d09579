// Tokens from the caller's memory to rows of samples: a transposition, with conversion to float64 on the way.

// Rows [first, last) of one lane, element by element; zero past the end of the sequence.
template <typename T>
void gather_lane(const Sequence& sequence, std::int64_t first, std::int64_t last, std::int64_t d, double* out,
                 std::int64_t stride) {
  const T* data = static_cast<const T*>(sequence.data);
  for (std::int64_t t = first; t < last; ++t) {
    for (std::int64_t j = 0; j < d; ++j) {
      *out =
          t < sequence.length ? static_cast<double>(data[t * sequence.row_stride + j * sequence.column_stride]) : 0.0;
      out += stride;
    }
  }
}

// Is every lane contiguous and at least `last` tokens long? Then its tokens are one run of numbers.
inline bool is_one_run(const Sequence* sequences, std::int64_t last, std::int64_t d) {
  for (int i = 0; i < lanes; ++i) {
    const Sequence& sequence = sequences[i];
    if (sequence.length < last || sequence.column_stride != 1 || sequence.row_stride != d) return false;
  }
  return true;
}

// Asks for the next vector of sequences while this one is at work, line after line in the order of memory: sequences of
// one array follow each other, and the processor's own prefetching then joins in.
template <typename T>
class NextSequences {
 public:
  // Numbers first .. first + run of each sequence, a vector of them; null: nothing.
  NextSequences(const Sequence* sequences, std::int64_t first, std::int64_t run)
      : sequences_(sequences), first_(first), run_(run) {
    if (sequences_ != nullptr) next_ = data();
  }

  // As many numbers as a square of lanes x lanes has.
  void advance() {
    if (sequences_ == nullptr) return;
    for (std::int64_t i = 0; i < lanes * lanes; i += in_line) {
      __builtin_prefetch(next_, 0, 2);  // into L2: more lines can be on their way there than into L1
      next_ += in_line;
      done_ += in_line;
      if (done_ >= run_) next_sequence();
    }
  }

 private:
  static constexpr std::int64_t in_line = 64 / sizeof(T);

  const T* data() const { return static_cast<const T*>(sequences_[lane_].data) + first_; }
  void next_sequence() {
    done_ = 0;
    if (lane_ + 1 < lanes) ++lane_;
    next_ = data();
  }

  const Sequence* sequences_;
  std::int64_t first_, run_, lane_ = 0, done_ = 0;
  const T* next_ = nullptr;
};

template <typename T>
void gather_and_prefetch(const Sequence* sequences, const Sequence* next, std::int64_t count, std::int64_t first,
                         std::int64_t last, std::int64_t d, std::int64_t width, double* out, std::int64_t stride) {
  const Sequence none{nullptr, 0, 0, 0};
  const std::int64_t run = (last - first) * d;
  NextSequences<T> ahead(next, first * d, run);
  for (std::int64_t lane = 0; lane < width; lane += lanes) {
    std::int64_t done = 0;
    if (lane + lanes <= count && is_one_run(sequences + lane, last, d)) {
      for (; done + lanes <= run; done += lanes) {
        ahead.advance();
        Lanes square[lanes];
        for (int i = 0; i < lanes; ++i) {
          square[i] = load(static_cast<const T*>(sequences[lane + i].data) + first * d + done);
        }
        transpose(square);
        for (int i = 0; i < lanes; ++i) *vectors(out + (done + i) * stride + lane) = square[i];
      }
      if (lanes > 2 && done + lanes / 2 <= run) {
        Lanes square[lanes];
        for (int i = 0; i < lanes; ++i) {
          square[i] = join(load_half(static_cast<const T*>(sequences[lane + i].data) + first * d + done), HalfLanes{});
        }
        transpose(square);
        for (int i = 0; i < lanes / 2; ++i) *vectors(out + (done + i) * stride + lane) = square[i];
        done += lanes / 2;
      }
      for (; done < run; ++done) {
        for (int i = 0; i < lanes; ++i) {
          out[done * stride + lane + i] =
              static_cast<double>(static_cast<const T*>(sequences[lane + i].data)[first * d + done]);
        }
      }
      continue;
    }
    for (std::int64_t i = lane; i < lane + lanes; ++i) {
      gather_lane<T>(i < count ? sequences[i] : none, first, last, d, out + i, stride);
    }
  }
}

template <typename T>
void gather(const Sequence* sequences, std::int64_t count, std::int64_t first, std::int64_t last, std::int64_t d,
            std::int64_t width, double* out, std::int64_t stride) {
  gather_and_prefetch<T>(sequences, nullptr, count, first, last, d, width, out, stride);
}

// out (d rows of `stride`), one vector of columns = the token at tokens[lane].
template <typename T>
LINATTN_INLINE void gather_tokens(const T* const* tokens, std::int64_t d, double* out, std::int64_t stride) {
  constexpr int half = static_cast<int>(lanes) / 2;
  std::int64_t j = 0;
  for (; j + half <= d; j += half) {
    Lanes square[half];
    for (int i = 0; i < half; ++i) square[i] = join(load_half(tokens[i] + j), load_half(tokens[i + half] + j));
    transpose_halves(square);
    for (int i = 0; i < half; ++i) *vectors(out + (j + i) * stride) = square[i];
  }
  for (; j < d; ++j) {
    for (int i = 0; i < lanes; ++i) out[j * stride + i] = static_cast<double>(tokens[i][j]);
  }
}
