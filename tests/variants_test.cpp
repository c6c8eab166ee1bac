// Which operators each backend runs, by its operator variants: tests/golden/variants.txt, one block per backend and version of
// ggml. With SLUICE_WRITE_VARIANTS=1 in the environment the blocks of the devices that are here are written anew and all
// others stay.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "exec/bound_nodes.h"
#include "nn/graph_builder.h"
#include "nn/variants.h"
#include "support/rig.h"

using namespace sluice;
using namespace sluice::test;

namespace {

const std::string kFile = std::string(SLUICE_SOURCE_DIR) + "/tests/golden/variants.txt";
constexpr const char* kHead =
    "# Operators by backend, as nn/variants chooses them: how many nodes of each kind the demo model's graphs have, and which "
    "a\n"
    "# backend cannot run. Made by `SLUICE_WRITE_VARIANTS=1 variants_test` on a machine that has the device; a block per "
    "backend\n"
    "# and version of ggml. A test compares the blocks of the devices that are present.\n";

/// Heading → lines.
using Blocks = std::map<std::string, std::string>;

Blocks read_blocks() {
  Blocks blocks;
  std::ifstream file(kFile);
  std::string line, heading;
  while (std::getline(file, line)) {
    if (line.starts_with('['))
      blocks[heading = line];
    else if (!heading.empty() && !line.empty())
      blocks[heading] += line + "\n";
  }
  return blocks;
}

void write_blocks(const Blocks& blocks) {
  std::ofstream file(kFile);
  file << kHead;
  for (const auto& [heading, lines] : blocks) file << "\n" << heading << "\n" << lines;
}

/// "[vulkan, ggml 0.27]" for vulkan0 and vulkan1.
std::string heading_of(const DeviceInfo& info) {
  std::string name = info.name, version = ggml_version();
  while (!name.empty() && std::isdigit(static_cast<unsigned char>(name.back()))) name.pop_back();
  if (const auto minor = version.find('.'); minor != std::string::npos)
    version = version.substr(0, version.find('.', minor + 1));
  return fmt::format("[{}, ggml {}]", name, version);
}

struct Nodes {
  std::map<std::string, int> counts, unsupported;
};

/// Builds every block's graph for one lane, without memory, and asks the device for every node.
void count_nodes(const Model& model, const LaneShape& lane, ComponentId component, Rig& rig, const Variants& variants,
                 Nodes& nodes) {
  struct Fact {
    Shape shape{1, 1, 1, 1};
    ggml_type type = GGML_TYPE_F32;
  };
  std::vector<Fact> values(model.values);
  for (std::size_t i = 0; i < model.inputs.size(); ++i)
    values[model.inputs[i].value.id] = {lane.inputs[i], model.inputs[i].type};
  for (std::size_t b = 0; b < model.blocks.size(); ++b) {
    const Block& block = model.blocks[b];
    constexpr std::size_t kMostNodes = 4096;
    const ggml_context_ptr context{
        ggml_init({kMostNodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(kMostNodes, false), nullptr, true})};
    const BlockLayout& layout = rig.store().layout({component, static_cast<std::uint32_t>(b)});
    std::vector<ggml_tensor*> weights, inputs;
    for (const auto& t : layout.tensors)
      weights.push_back(ggml_new_tensor(context.get(), t.type, static_cast<int>(t.shape.size()), t.shape.data()));
    for (const Value v : block.inputs)
      inputs.push_back(ggml_new_tensor(context.get(), values[v.id].type, 4, values[v.id].shape.data()));
    GraphBuilder builder(context.get(), variants, weights);
    const auto outputs = block.forward(builder, inputs);
    ggml_cgraph* graph = ggml_new_graph_custom(context.get(), kMostNodes, false);
    for (ggml_tensor* output : outputs) ggml_build_forward_expand(graph, output);
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
      const ggml_tensor* node = ggml_graph_node(graph, i);
      ++nodes.counts[ggml_op_desc(node)];
      if (!rig.any_device().supports(node)) ++nodes.unsupported[ggml_op_desc(node)];
    }
    for (std::size_t o = 0; o < outputs.size(); ++o) {
      auto& fact = values[block.outputs[o].id];
      std::copy(std::begin(outputs[o]->ne), std::end(outputs[o]->ne), fact.shape.begin());
      fact.type = outputs[o]->type;
    }
  }
}

std::string list(const std::map<std::string, int>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  return text.empty() ? "none" : text;
}

/// What a device runs, as it stands in the file under its heading. `table`: instead of the device's own.
std::string lines_of(const std::string& device, std::optional<Variants> table = {}) {
  RigOptions options;
  options.device = device;
  auto rig = Rig::open(options);
  REQUIRE_MESSAGE(rig, rig.error().message);
  const Variants variants = table.value_or(variants_for(ggml_backend_buft_get_device((*rig)->any_device().buffer_type())));
  std::string lines =
      fmt::format("variants: im2col up to {}, scores up to {}, {} beyond\n", format_bytes(variants.im2col_limit),
                  format_bytes(variants.score_limit), variants.flash ? "flash attention" : "queries in parts");
  Nodes all;
  for (const int pixels : {64, 512}) {
    Request request = small_request();
    request.width = request.height = pixels;
    const auto settings = check_request(request, (*rig)->model().rule);
    REQUIRE(settings);
    const auto specs = TextToImage((*rig)->model(), (*rig)->store(), (*rig)->session()).stages(*settings);
    REQUIRE(specs);
    for (const auto& spec : *specs) {
      if (pixels != 64 && spec.name == "encode") continue;  // the same at every size
      Nodes nodes;
      count_nodes((*rig)->store().model(spec.component), spec.lanes[0], spec.component, **rig, variants, nodes);
      lines += fmt::format("{} {}: {}\n", spec.name, pixels, list(nodes.counts));
      for (const auto& [name, count] : nodes.unsupported) all.unsupported[name] += count;
    }
  }
  return lines + fmt::format("not supported: {}\n", list(all.unsupported));
}

bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("every device runs the operators that the table says, and supports each") {
  const char* const write = std::getenv("SLUICE_WRITE_VARIANTS");
  Blocks blocks = read_blocks();
  int compared = 0;
  for (const auto& listing : list_devices()) {
    const std::string heading = heading_of(listing.info);
    CAPTURE(heading);
    const std::string lines =
        lines_of(listing.info.kind == DeviceKind::cpu ? listing.info.name + ":threads=1" : listing.info.name);
    CHECK_MESSAGE(says(lines, "not supported: none"), lines);
    if (write) {
      blocks[heading] = lines;
    } else if (blocks.contains(heading)) {
      CHECK(lines == blocks[heading]);
      ++compared;
    } else {
      MESSAGE(kFile, " has no block ", heading, ": run SLUICE_WRITE_VARIANTS=1 variants_test. It would be\n", lines);
    }
  }
  if (write)
    write_blocks(blocks);
  else
    CHECK(compared > 0);
}

TEST_CASE("the simulated device is the CPU, but for what it lacks") {
  CHECK(lines_of("sim:threads=1") == lines_of("cpu:threads=1"));
  const std::string lacking = lines_of("sim:threads=1,lacks=SOFT_MAX+FLASH_ATTN_EXT");
  CHECK_MESSAGE(says(lacking, "not supported: FLASH_ATTN_EXT 66, SOFT_MAX 4\n"), lacking);
}

TEST_CASE("the variants are really other operators") {
  const std::string cpu = lines_of("cpu:threads=1");
  CHECK_MESSAGE(says(cpu, "FLASH_ATTN_EXT"), cpu);
  CHECK_MESSAGE(says(cpu, "CONV_2D"), cpu);
  const std::string other =
      lines_of("cpu:threads=1", Variants{.im2col_limit = 1000 * GiB, .score_limit = 64 * MiB, .flash = false});
  CHECK_MESSAGE(says(other, "IM2COL"), other);
  CHECK_FALSE(says(other, "FLASH_ATTN_EXT"));
  CHECK_FALSE(says(other, "CONV_2D"));
}

TEST_CASE("what was supported without memory is supported as it is bound: resident, streamed and used in place") {
  for (const char* device : {"cpu:threads=1", "sim:threads=1"}) {
    for (const HostTier tier : {HostTier::mapped, HostTier::read}) {
      for (const bool all : {false, true}) {
        CAPTURE(device);
        CAPTURE(all);
        RigOptions options;
        options.device = device;
        options.tier = tier;
        auto rig = Rig::open(options);
        REQUIRE(rig);
        auto prepared = (*rig)->prepare(one_step());
        REQUIRE(prepared);
        if (!all) {
          (*rig)->set_budget((*prepared)->plan().smallest + (*prepared)->backend());
          prepared = (*rig)->prepare(one_step());
          REQUIRE(prepared);
        }
        Device& d = (*rig)->any_device();
        CHECK_FALSE(check_bound_nodes(d, (*prepared)->stages[0].graph(0, 0)));
        REQUIRE((*rig)->session().bind(**prepared, CancelToken{}));
        int graphs = 0;
        for (const Stage& stage : (*prepared)->stages) {
          for (std::size_t b = 0; b < stage.blocks(); ++b, ++graphs) {
            const auto checked = check_bound_nodes(d, stage.graph(0, b));
            CHECK_MESSAGE(checked, checked.error().message);
          }
        }
        CHECK(graphs > 50);
        (*rig)->session().finish(true);
      }
    }
  }
}
