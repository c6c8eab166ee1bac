// Weights used in place: an aligned f32 file on the CPU device.
#include <doctest/doctest.h>

#include <fstream>

#include "io/test_folder.h"
#include "support/f32_model.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

RigOptions cpu(const std::string& model, HostTier tier, std::optional<Bytes> budget) {
  RigOptions options;
  options.device = "cpu:threads=1";
  options.model = model;
  options.tier = tier;
  options.budget = budget;
  return options;
}

// What ggml may look at when it chooses a kernel for an operand.
struct Operand {
  Bytes misalignment = 0;
  bool view = false;
  ggml_backend_buffer_usage usage = GGML_BACKEND_BUFFER_USAGE_ANY;
  bool host = false;
  ggml_type type = GGML_TYPE_F32;
  bool operator==(const Operand&) const = default;
};

std::vector<Operand> operands(const Prepared& prepared) {
  std::vector<Operand> all;
  for (const auto& stage : prepared.stages) {
    for (std::size_t l = 0; l < stage.spec().lanes.size(); ++l) {
      for (std::size_t b = 0; b < stage.blocks(); ++b) {
        ggml_cgraph* graph = stage.graph(l, b);
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
          for (const ggml_tensor* t : ggml_graph_node(graph, i)->src) {
            if (!t || t->op != GGML_OP_NONE) continue;  // leaves: weights and inputs
            all.push_back({reinterpret_cast<std::uintptr_t>(t->data) % 32, t->view_src != nullptr,
                           ggml_backend_buffer_get_usage(t->buffer), ggml_backend_buffer_is_host(t->buffer), t->type});
          }
        }
      }
    }
  }
  return all;
}

}  // namespace

TEST_CASE("in place, copied, streamed: the same bits, the budget kept by the ledger, operands alike in every placement") {
  const Folder folder;
  const std::string path = folder / "f32.safetensors";
  REQUIRE(write_f32_model(path));
  const Request request = small_request();

  std::optional<Drawn> want;
  std::vector<Operand> want_operands;
  Bytes smallest = 0, full = 0;
  {
    auto rig = Rig::open(cpu(path, HostTier::read, std::nullopt));
    REQUIRE_MESSAGE(rig, rig.error().message);
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    want = std::move(*drawn);
    auto prepared = (*rig)->prepare(request);
    REQUIRE(prepared);
    want_operands = operands(**prepared);
    smallest = (*prepared)->plan().smallest + (*prepared)->backend();
    full = (*prepared)->plan().full + (*prepared)->backend();
  }
  REQUIRE_FALSE(want_operands.empty());
  for (const auto& o : want_operands) {
    CHECK(o.misalignment == 0);
    CHECK_FALSE(o.view);
  }
  for (int i = 0; i <= 6; ++i) {
    const Bytes budget = smallest + (full - smallest) * static_cast<Bytes>(i) / 6;
    CAPTURE(budget);
    auto rig = Rig::open(cpu(path, HostTier::mapped, budget));
    REQUIRE(rig);
    for (std::uint32_t b = 0; b < (*rig)->store().model((*rig)->model().denoiser).blocks.size(); ++b) {
      const BlockId id{(*rig)->model().denoiser, b};
      CHECK((*rig)->store().mappable(id) == ((*rig)->store().layout(id).size > 0));
    }
    auto drawn = (*rig)->draw(request);
    REQUIRE_MESSAGE(drawn, drawn.error().message);
    CHECK(drawn->latents == want->latents);
    CHECK(drawn->pixels == want->pixels);
    auto prepared = (*rig)->prepare(request);
    REQUIRE(prepared);
    CHECK(operands(**prepared) == want_operands);
    const LedgerReport books = (*rig)->any_device().ledger().report();
    CHECK(books.peak <= budget);
    CHECK(books.by_use[static_cast<std::size_t>(Use::mapped)] == (*prepared)->plan().mapped);
    if (i == 6) {
      CHECK((*prepared)->plan().mapped > 0);
      CHECK(drawn->runs[1].copied == 0);  // everything stays where the file is
    }
    (*rig)->session().release();
    CHECK((*rig)->any_device().ledger().report().total == 0);
  }
}

TEST_CASE("the demo file's tensors are f16 and unaligned: nothing of it is used in place, and the picture is the same") {
  const Request request = small_request();
  auto read = Rig::open(cpu(kDemoModel, HostTier::read, std::nullopt));
  REQUIRE(read);
  auto want = (*read)->draw(request);
  REQUIRE(want);
  (*read)->session().release();
  auto mapped = Rig::open(cpu(kDemoModel, HostTier::mapped, std::nullopt));
  REQUIRE(mapped);
  auto drawn = (*mapped)->draw(request);
  REQUIRE(drawn);
  CHECK(drawn->latents == want->latents);
  CHECK(drawn->pixels == want->pixels);
  CHECK((*mapped)->any_device().ledger().report().by_use[static_cast<std::size_t>(Use::mapped)] == 0);
}
