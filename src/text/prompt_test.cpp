#include "text/prompt.h"

#include <doctest/doctest.h>

#include <cmath>
#include <random>

namespace sluice {
namespace {

using Pieces = std::vector<WeightedText>;

void check(std::string_view prompt, const Pieces& want) {
  CAPTURE(prompt);
  const Pieces got = parse_prompt(prompt);
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    CHECK(got[i].text == want[i].text);
    CHECK(got[i].weight == doctest::Approx(want[i].weight).epsilon(1e-12));
  }
}

}  // namespace

TEST_CASE("parse_prompt: emphasis") {
  check("", {{"", 1}});
  check("plain text", {{"plain text", 1}});
  check("an (important) word", {{"an ", 1}, {"important", 1.1}, {" word", 1}});
  check("a [dim] word", {{"a ", 1}, {"dim", 1 / 1.1}, {" word", 1}});
  check("(x:1.2)", {{"x", 1.2}});
  check("(x: +.5 )", {{"x", 0.5}});
  check("(x:-1)", {{"x", -1}});
  check("(x:0)", {{"x", 0}});
  check("(x:2.)", {{"x", 2}});
  check("((x))", {{"x", 1.21}});
  check("((x:1.3) y:0.5)", {{"x", 0.65}, {" y", 0.5}});
  check("[(x)]", {{"x", 1}});
  check("a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).", {{"a ", 1},
                                                                {"house", 1.3 * 1.1 * 1.1},
                                                                {" ", 1.1},
                                                                {"on", 1},
                                                                {" a ", 1.1},
                                                                {"hill", 0.55},
                                                                {", sun, ", 1.1},
                                                                {"sky", std::pow(1.1, 4)},
                                                                {".", 1.1}});
}

TEST_CASE("parse_prompt: escapes") {
  check(R"(\(x\))", {{"(x)", 1}});
  check(R"(\[x\])", {{"[x]", 1}});
  check(R"(a\\b)", {{R"(a\b)", 1}});
  check(R"(a\b)", {{R"(a\b)", 1}});
  check(R"(\)", {{R"(\)", 1}});
  check(R"((a\)b:1.5))", {{"a)b", 1.5}});
  check(R"(\\(x))", {{R"(\)", 1}, {"x", 1.1}});
}

TEST_CASE("parse_prompt: unbalanced brackets and odd numbers") {
  check("x)", {{"x)", 1}});
  check("x]:1.2)", {{"x]:1.2)", 1}});
  check("(x", {{"x", 1.1}});
  check("[x", {{"x", 1 / 1.1}});
  check("a (b [c", {{"a ", 1}, {"b ", 1.1}, {"c", 1}});
  check("x:1.2)", {{"x:1.2)", 1}});
  check("[x:1.2]", {{"x:1.2", 1 / 1.1}});
  check("(x:)", {{"x:", 1.1}});
  check("(x:abc)", {{"x:abc", 1.1}});
  check("(x:1.2.3)", {{"x:1.2.3", 1.1}});
  check("(x:.)", {{"x:.", 1.1}});
  check("(x:inf)", {{"x:inf", 1.1}});
  check("(x:1e5)", {{"x:1e5", 1.1}});
  check("(x:1.2:1.3)", {{"x:1.2", 1.3}});
  check("(x:1.2", {{"x:1.2", 1.1}});
  check("()", {{"", 1}});
  check("([)]", {{"", 1}});
  check("(a[b)c]", {{"a", 1.1}, {"b", 1}, {"c", 1 / 1.1}});
  check("(x:" + std::string(500, '9') + ")", {{"x:" + std::string(500, '9'), 1.1}});
  check("(x:99999)", {{"x", kMaxWeight}});
  check("((x:-999):999)", {{"x", -kMaxWeight}});
}

TEST_CASE("parse_prompt: never fails, keeps its bounds, and is linear") {
  std::mt19937 rng(9);
  const std::string alphabet = "()[]\\:.:1-+ a\xC3\xFF";
  for (int round = 0; round < 2000; ++round) {
    CAPTURE(round);
    std::string prompt(rng() % 120, '\0');
    for (char& c : prompt) c = round % 2 ? alphabet[rng() % alphabet.size()] : static_cast<char>(rng() & 0xFF);
    std::size_t bytes = 0;
    const Pieces pieces = parse_prompt(prompt);
    REQUIRE(!pieces.empty());
    for (const auto& piece : pieces) {
      bytes += piece.text.size();
      CHECK(std::abs(piece.weight) <= kMaxWeight);
    }
    CHECK(bytes <= prompt.size());
  }
  std::string deep;
  for (int i = 0; i < 300'000; ++i) deep += "(a[b";
  CHECK(parse_prompt(deep).back().weight <= kMaxWeight);
}

}  // namespace sluice
