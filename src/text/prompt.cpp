#include "text/prompt.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace sluice {
namespace {

constexpr double kStep = 1.1;
/// Keeps the cost linear whatever a prompt is made of: each bracket that closes visits the pieces inside it.
constexpr std::size_t kMaxDepth = 64;

/// `:` spaces, a number, spaces, `)` at the start of `text`.
struct Suffix {
  double weight = 1.0;
  std::size_t length = 0;
};

std::optional<Suffix> weight_suffix(std::string_view text) {
  const auto is_space = [](char c) { return c == ' ' || (c >= '\t' && c <= '\r'); };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  std::size_t i = 1;  // the colon
  while (i < text.size() && is_space(text[i])) ++i;
  double sign = 1;
  if (i < text.size() && (text[i] == '+' || text[i] == '-')) sign = text[i++] == '-' ? -1 : 1;
  // Read by hand: strtod listens to the locale and takes "inf" and "0x1", which are words here. Both sides of the quotient
  // are exact up to 15 digits, so 1.3 is the double nearest to 1.3.
  double digits = 0, scale = 1;
  bool point = false, any = false;
  for (; i < text.size() && (is_digit(text[i]) || (text[i] == '.' && !point)); ++i) {
    if (text[i] == '.') {
      point = true;
      continue;
    }
    any = true;
    digits = digits * 10 + (text[i] - '0');
    if (point) scale *= 10;
  }
  const double weight = sign * digits / scale;
  if (!any || !std::isfinite(weight)) return std::nullopt;
  while (i < text.size() && is_space(text[i])) ++i;
  if (i >= text.size() || text[i] != ')') return std::nullopt;
  return Suffix{weight, i + 1};
}

double clamped(double weight) { return std::clamp(weight, -kMaxWeight, kMaxWeight); }

class Parser {
 public:
  std::vector<WeightedText> parse(std::string_view prompt) {
    for (std::size_t i = 0; i < prompt.size();) i += take(prompt.substr(i));
    for (const std::size_t from : round_) multiply(from, kStep);
    for (const std::size_t from : square_) multiply(from, 1 / kStep);
    return joined();
  }

 private:
  /// Consumes one token at the start of `rest` and returns its length.
  std::size_t take(std::string_view rest) {
    const char c = rest[0];
    if (c == '\\' && rest.size() > 1 && std::string_view("()[]\\").find(rest[1]) != std::string_view::npos) {
      text_ += rest[1];
      return 2;
    }
    if (c == '(' || c == '[') {
      auto& open = c == '(' ? round_ : square_;
      if (open.size() < kMaxDepth) {
        open.push_back(cut());
        return 1;
      }
    }
    if (c == ':' && !round_.empty()) {
      if (const auto suffix = weight_suffix(rest)) {
        close(round_, suffix->weight);
        return suffix->length;
      }
    }
    if (c == ')' && !round_.empty()) {
      close(round_, kStep);
      return 1;
    }
    if (c == ']' && !square_.empty()) {
      close(square_, 1 / kStep);
      return 1;
    }
    text_ += c;
    return 1;
  }

  /// Ends the piece being read; returns the index of the next.
  std::size_t cut() {
    if (!text_.empty()) pieces_.push_back({std::move(text_), 1.0});
    text_.clear();
    return pieces_.size();
  }

  void close(std::vector<std::size_t>& open, double factor) {
    cut();
    multiply(open.back(), factor);
    open.pop_back();
  }

  void multiply(std::size_t from, double factor) {
    cut();
    for (std::size_t i = from; i < pieces_.size(); ++i) pieces_[i].weight = clamped(pieces_[i].weight * factor);
  }

  std::vector<WeightedText> joined() {
    cut();
    std::vector<WeightedText> out;
    for (WeightedText& piece : pieces_) {
      if (!out.empty() && out.back().weight == piece.weight) {
        out.back().text += piece.text;
      } else {
        out.push_back(std::move(piece));
      }
    }
    if (out.empty()) out.push_back({});
    return out;
  }

  std::vector<WeightedText> pieces_;
  std::string text_;
  std::vector<std::size_t> round_, square_;  // index of the first piece inside each open bracket
};

}  // namespace

std::vector<WeightedText> parse_prompt(std::string_view prompt) { return Parser{}.parse(prompt); }

}  // namespace sluice
