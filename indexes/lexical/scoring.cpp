// BM25 over posting lists: the best rows of a part, and the scores of given rows. `bm25.py` calls this.
//
// Scores equal, bit for bit, those of the plain form in tests/support/scoring.py: the same float32 operations, summed in
// the order of the query's terms. That needs -ffp-contract=off, since a fused multiply-add rounds once instead of twice.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace py = pybind11;

namespace {

constexpr std::uint32_t WINDOW = 8192;     // rows that are scored together: their sums stay in the cache
constexpr std::size_t GROUP = 32;          // rows of it that are compared at a time
constexpr std::size_t LOOKUP_COST = 32;    // finding a row in a list takes as long as adding so many postings
constexpr std::size_t TRIED_COST = 4;      // the same where it is compared with adding gains, which takes longer
constexpr std::size_t BOUNDED_TERMS = 32;  // of a window; with more, adding up gains takes less time
constexpr float SLACK = 1 - 5e-4f;         // more than the rounding errors of summing thousands of terms

template <typename T>
using Array = py::array_t<T, py::array::c_style>;
using Lists = std::vector<std::pair<Array<std::uint32_t>, Array<std::uint16_t>>>;
using Bounds = std::vector<std::optional<std::tuple<Array<std::uint8_t>, float, float>>>;
using Formula = std::array<float, 3>;
using Scored = std::pair<Array<std::int64_t>, Array<float>>;

// What a term adds to a row's score, divided by its weight (`saturate` in bm25.py).
struct Saturation {
    Saturation(const Formula& formula, const Array<std::uint32_t>& lengths)
        : slope(formula[0]), base(formula[1]), limit(formula[2]), lengths(lengths.data()) {}

    float slope, base, limit;
    const std::uint32_t* lengths;

    float operator()(std::uint16_t frequency, std::uint32_t row) const {
        const float tf = frequency;
        return tf * limit / (tf + (static_cast<float>(lengths[row]) * slope + base));
    }
};

// The first of ascending values that is not below `value`, without a branch that the processor could mispredict.
const std::uint32_t* find(const std::uint32_t* begin, std::size_t size, std::uint32_t value) {
    while (size > 0) {
        const std::size_t half = size / 2;
        begin = begin[half] < value ? begin + size - half : begin;
        size = half;
    }
    return begin;
}

// The same, fast if it is near the begin.
const std::uint32_t* find_from(const std::uint32_t* begin, const std::uint32_t* end, std::uint32_t value) {
    std::size_t step = 1;
    while (step < static_cast<std::size_t>(end - begin) && begin[step] < value) {
        begin += step;
        step *= 2;
    }
    return find(begin, std::min<std::size_t>(step + 1, end - begin), value);
}

struct Term {
    const std::uint32_t* rows;  // ascending
    const std::uint16_t* frequencies;
    std::size_t size;
    float weight;
    float bound;  // the most that it adds to a row
    const std::uint8_t* steps = nullptr;  // the most that each posting adds, in steps of `step`
    float step = 0;

    std::size_t begin = 0, end = 0;  // its postings in the window

    std::size_t size_here() const { return end - begin; }

    void enter(std::uint32_t last) {
        begin = end;
        end = find_from(rows + begin, rows + size, last) - rows;
        if (begin == end && begin < size && rows[begin] < last) ++end;  // damaged: they do not ascend
    }

    // What it adds to a row of the window; 0 if the row lacks it.
    float gain(std::uint32_t row, const Saturation& saturate) const {
        const auto* found = find(rows + begin, size_here(), row);
        if (found == rows + end || *found != row) return 0;
        return saturate(frequencies[found - rows], row) * weight;
    }
};

// The best scores so far, and the score that a row must reach to be among them.
class Best {
public:
    Best(std::size_t depth, float floor) : threshold(floor), depth_(depth) {}

    float threshold;
    std::vector<std::pair<std::uint32_t, float>> hits;  // those that reached it when they were found

    void offer(std::uint32_t row, float score) {
        if (score < threshold || score <= 0) return;
        hits.emplace_back(row, score);
        if (scores_.size() < depth_) {
            scores_.push_back(score);
            std::push_heap(scores_.begin(), scores_.end(), std::greater<>());
        } else if (score > scores_.front()) {
            std::pop_heap(scores_.begin(), scores_.end(), std::greater<>());
            scores_.back() = score;
            std::push_heap(scores_.begin(), scores_.end(), std::greater<>());
        }
        if (scores_.size() == depth_) threshold = std::max(threshold, scores_.front());
    }

private:
    std::size_t depth_;
    std::vector<float> scores_;  // a heap, lowest first
};

// Scores the rows of one window after the other: MaxScore (Turtle and Flood 1995). Once a threshold is known, bounds are
// summed instead of gains, because they need no lengths, and a row is scored if its sum may reach the threshold. Terms that
// cannot lift a row there even together are only looked up for the rows of the others, if that takes less time.
class Search {
public:
    Search(std::vector<Term>& terms, Saturation saturate, std::uint32_t size, const std::uint8_t* allowed,
           std::size_t allowed_bytes)
        : terms_(terms), saturate_(saturate), size_(size), allowed_(allowed), allowed_bytes_(allowed_bytes) {}

    void run(Best& best) {
        while (enter_next()) {
            float total = 0;
            for (const auto* term : here_) total += term->bound;
            if (total < best.threshold * SLACK || !mark_allowed()) continue;
            set_apart(best.threshold);
            if (rest_ + 1 == here_.size()) {
                offer_each(*here_.back(), best);
                continue;
            }
            for (auto at = here_.begin() + rest_; at != here_.end(); ++at) add(**at);
            offer(best);
        }
    }

private:
    // Move to the window of the next posting; false if there is none. `here_` and `in_order_` have the terms in it.
    bool enter_next() {
        std::uint64_t next = UINT64_MAX;
        for (const auto& term : terms_)
            if (term.end < term.size) next = std::min<std::uint64_t>(next, term.rows[term.end]);
        if (next >= size_) return false;
        first_ = static_cast<std::uint32_t>(next) / 64 * 64;
        width_ = std::min(WINDOW, size_ - first_);
        here_.clear();
        for (auto& term : terms_) {
            term.enter(first_ + WINDOW);
            if (term.size_here()) here_.push_back(&term);
        }
        in_order_ = here_;
        return true;
    }

    bool mark_allowed() {
        if (!allowed_) return true;
        allowed_here_.fill(0);
        const std::size_t from = first_ / 8;
        if (from < allowed_bytes_)
            std::memcpy(allowed_here_.data(), allowed_ + from, std::min<std::size_t>(WINDOW / 8, allowed_bytes_ - from));
        return std::any_of(allowed_here_.begin(), allowed_here_.end(), [](auto word) { return word != 0; });
    }

    // Decide whether to sum gains, and put first those terms that are only looked up, the `rest_`.
    void set_apart(float threshold) {
        std::size_t postings = 0;
        for (const auto* term : here_) postings += term->size_here();
        exact_ = threshold <= 0 || here_.size() > BOUNDED_TERMS ||
                 std::exchange(tried_, 0) * here_.size() * TRIED_COST > postings ||
                 std::none_of(here_.begin(), here_.end(), [](auto* term) { return term->steps; });
        std::sort(here_.begin(), here_.end(), [](auto* a, auto* b) { return a->bound < b->bound; });
        rest_ = 0;
        for (float sum = 0; rest_ < here_.size() && (sum += here_[rest_]->bound) < threshold * SLACK;) ++rest_;
        std::size_t added = 0;
        for (auto at = rest_; at < here_.size(); ++at) added += here_[at]->size_here();
        for (; rest_ > 0 && here_[rest_ - 1]->size_here() < added * LOOKUP_COST; --rest_)
            added += here_[rest_ - 1]->size_here();
        most_ = 0;
        for (std::size_t at = 0; at < rest_; ++at) most_ += here_[at]->bound;
        std::sort(here_.begin() + rest_, here_.end());  // sums depend on the order, which is that of the query
    }

    void add(const Term& term) {
        // Copies: for all that the compiler knows, sums may be written over the members.
        const auto [rows, frequencies, steps, end] = std::tuple(term.rows, term.frequencies, term.steps, term.end);
        const auto [step, weight, first, width] = std::tuple(term.step, term.weight, first_, width_);
        const auto saturate = saturate_;
        const auto add_each = [&](auto gain) {
            for (auto at = term.begin; at < end; ++at) {
                const auto place = rows[at] - first;
                if (place < width) sums_[place] += gain(at);  // always, unless the list is damaged
            }
        };
        if (!exact_ && steps) {
            add_each([=](std::size_t at) { return steps[at] * step; });
        } else {
            add_each([=](std::size_t at) { return saturate(frequencies[at], rows[at]) * weight; });
        }
    }

    // The same as adding a single term and offering the sums.
    void offer_each(const Term& term, Best& best) {
        const bool bounded = !exact_ && term.steps;
        for (auto at = term.begin; at < term.end; ++at) {
            const auto row = term.rows[at];
            if (row - first_ >= width_ || (bounded && term.steps[at] * term.step < wanted(best))) continue;
            const float gain = saturate_(term.frequencies[at], row) * term.weight;
            if (gain < wanted(best)) continue;
            if (rest_) {
                try_row(row, gain, best);
            } else if (is_allowed(row - first_)) {
                best.offer(row, gain);
            }
        }
    }

    // Try each row with a sum, and forget the sums.
    void offer(Best& best) {
        std::size_t added = 0;
        for (auto at = rest_; at < here_.size(); ++at) added += here_[at]->size_here();
        if (added < WINDOW / 16) {
            for (auto at = rest_; at < here_.size(); ++at)
                for (auto posting = here_[at]->begin; posting < here_[at]->end; ++posting)
                    if (const auto place = here_[at]->rows[posting] - first_; place < width_) try_place(place, best);
            return;
        }
        for (std::size_t group = 0; group < WINDOW; group += GROUP) {
            if (!any_reaches(sums_.data() + group, wanted(best))) continue;
            for (std::size_t place = group; place < group + GROUP; ++place) try_place(place, best);
        }
        sums_.fill(0);
    }

    // The sum that a row must have.
    float wanted(const Best& best) const {
        return std::max(best.threshold * SLACK - most_, std::numeric_limits<float>::denorm_min());
    }

    // Positive floats compare like their bits, and compilers compare several integers at a time.
    static bool any_reaches(const float* sums, float wanted) {
        std::int32_t any = 0, bits[GROUP], wanted_bits;
        std::memcpy(bits, sums, sizeof(bits));
        std::memcpy(&wanted_bits, &wanted, sizeof(wanted));
        for (const auto sum : bits) any |= sum >= wanted_bits ? -1 : 0;
        return any;
    }

    bool is_allowed(std::size_t place) const { return !allowed_ || allowed_here_[place / 64] >> place % 64 & 1; }

    void try_place(std::size_t place, Best& best) {
        const float sum = std::exchange(sums_[place], 0.0f);
        if (sum >= wanted(best)) try_row(first_ + static_cast<std::uint32_t>(place), sum, best);
    }

    void try_row(std::uint32_t row, float sum, Best& best) {
        if (!is_allowed(row - first_)) return;
        ++tried_;
        float most = most_;
        if (rest_ || !exact_) {
            for (auto at = rest_; at-- > 0;) {
                most -= here_[at]->bound;
                sum += here_[at]->gain(row, saturate_);
                if (sum + most < best.threshold * SLACK) return;
            }
            sum = 0;
            for (const auto* term : in_order_) sum += term->gain(row, saturate_);
        }
        best.offer(row, sum);
    }

    std::vector<Term>& terms_;
    Saturation saturate_;
    std::uint32_t size_;
    const std::uint8_t* allowed_;
    std::size_t allowed_bytes_;

    std::uint32_t first_ = 0, width_ = 0;
    std::vector<Term*> here_, in_order_;
    std::size_t rest_ = 0;
    float most_ = 0;         // that the rest can add to a row
    bool exact_ = true;      // the sums are of gains
    std::size_t tried_ = 0;  // rows of the window before
    std::array<float, WINDOW> sums_{};
    std::array<std::uint64_t, WINDOW / 64> allowed_here_{};
};

// Raises ValueError rather than reading beyond an array.
std::vector<Term> terms_of(const Lists& lists, const std::vector<float>& weights, const Saturation& saturate,
                           std::size_t size) {
    if (weights.size() != lists.size()) throw py::value_error("each posting list needs a weight");
    if (size > UINT32_MAX - WINDOW) throw py::value_error("there are too many rows");
    std::vector<Term> terms;
    for (std::size_t at = 0; at < lists.size(); ++at) {
        const auto& [rows, frequencies] = lists[at];
        const auto count = static_cast<std::size_t>(rows.size());
        if (count != static_cast<std::size_t>(frequencies.size()) || (count && rows.data()[count - 1] >= size))
            throw py::value_error("a posting list does not fit its rows");
        terms.push_back({rows.data(), frequencies.data(), count, weights[at], weights[at] * saturate.limit});
    }
    return terms;
}

// All rows that reach the `depth`-th best score, and `floor`.
Scored best(const Lists& lists, const std::vector<float>& weights, const Bounds& bounds, const Array<std::uint32_t>& lengths,
            const Formula& formula, std::size_t depth, const std::optional<Array<std::uint8_t>>& allowed, float floor) {
    if (depth == 0 || bounds.size() != lists.size()) throw py::value_error("depth or bounds");
    const Saturation saturate(formula, lengths);
    auto terms = terms_of(lists, weights, saturate, lengths.size());
    for (std::size_t at = 0; at < terms.size(); ++at) {
        if (!bounds[at]) continue;
        const auto& [steps, step, highest] = *bounds[at];
        if (static_cast<std::size_t>(steps.size()) != terms[at].size) throw py::value_error("bounds do not fit");
        terms[at].steps = steps.data();
        terms[at].step = step;
        terms[at].bound = step * highest;
    }
    Best found(depth, floor);
    {
        py::gil_scoped_release release;
        Search(terms, saturate, lengths.size(), allowed ? allowed->data() : nullptr, allowed ? allowed->size() : 0).run(found);
        const auto below = [&](const auto& hit) { return hit.second < found.threshold; };
        found.hits.erase(std::remove_if(found.hits.begin(), found.hits.end(), below), found.hits.end());
    }
    Array<std::int64_t> rows(found.hits.size());
    Array<float> scores(found.hits.size());
    for (std::size_t at = 0; at < found.hits.size(); ++at)
        std::tie(rows.mutable_data()[at], scores.mutable_data()[at]) = found.hits[at];
    return {rows, scores};
}

// The scores of these rows, in their order; ascending rows are found faster.
Array<float> score(const Lists& lists, const std::vector<float>& weights, const Array<std::uint32_t>& lengths,
                   const Formula& formula, const Array<std::uint32_t>& wanted) {
    const Saturation saturate(formula, lengths);
    const auto terms = terms_of(lists, weights, saturate, lengths.size());
    for (py::ssize_t at = 0; at < wanted.size(); ++at)
        if (wanted.data()[at] >= lengths.size()) throw py::value_error("a row is not in the part");
    Array<float> scores(wanted.size());
    const std::uint32_t* rows = wanted.data();
    float* sums = scores.mutable_data();
    std::fill_n(sums, wanted.size(), 0.0f);
    py::gil_scoped_release release;
    for (const auto& term : terms) {
        const std::uint32_t *found = term.rows, *end = term.rows + term.size;
        for (py::ssize_t at = 0; at < wanted.size(); ++at) {
            found = find_from(at && rows[at] < rows[at - 1] ? term.rows : found, end, rows[at]);
            if (found < end && *found == rows[at])
                sums[at] += saturate(term.frequencies[found - term.rows], rows[at]) * term.weight;
        }
    }
    return scores;
}

}  // namespace

#ifndef MADE_OF
#define MADE_OF ""
#endif

PYBIND11_MODULE(scoring, module) {
    module.attr("MADE_OF") = MADE_OF;  // by which the build knows whether this is what the source makes
    module.def("best", &best);
    module.def("score", &score);
}
